/* Inside a target of scripts/bench: what a tool does to it, seen without Python's lock.
 *
 * One thread ticks every millisecond and keeps the longest gap between two ticks; another waits in epoll_wait(2), which
 * returns EINTR when the process is stopped and goes on. Both write to memory that the bench reads.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

struct seen {
    volatile uint64_t longest_gap_ns;
    volatile uint64_t ticks;
    volatile uint64_t interrupted;
};

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *tick(void *argument) {
    struct seen *seen = argument;
    struct timespec pause = {0, 1000000};
    uint64_t last = now();
    for (;;) {
        nanosleep(&pause, NULL);
        uint64_t time = now(), gap = time - last;
        if (gap > seen->longest_gap_ns)
            seen->longest_gap_ns = gap;
        seen->ticks++;
        last = time;
    }
    return NULL;
}

static void *wait_for_nothing(void *argument) {
    struct seen *seen = argument;
    struct epoll_event event;
    int events = epoll_create1(0);
    for (;;)
        if (epoll_wait(events, &event, 1, -1) < 0 && errno == EINTR)
            seen->interrupted++;
    return NULL;
}

int watch(struct seen *seen) {
    pthread_t thread;
    return pthread_create(&thread, NULL, tick, seen) || pthread_create(&thread, NULL, wait_for_nothing, seen);
}
