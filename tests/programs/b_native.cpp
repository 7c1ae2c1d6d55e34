// Locks of C and C++ that are held for ever, for b_native.py (through ctypes) and for a program without Python.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <thread>

static pthread_mutex_t plain[3] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t inheriting, robust, recursive;
static pthread_rwlock_t read_locked = PTHREAD_RWLOCK_INITIALIZER;
static std::shared_mutex write_locked;
static std::mutex standard, ring_of_standard[3];
static std::mutex for_condition;
static std::condition_variable condition;
static sem_t empty;
static pthread_barrier_t barrier;

static void stay() {
  for (;;) pause();
}

extern "C" {
void prepare(int parties) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&inheriting, &kind);
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&robust, &kind);
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&recursive, &kind);
  sem_init(&empty, 0, 0);
  pthread_barrier_init(&barrier, nullptr, parties);
}

// Each party takes its own mutex, meets the others, and wants the next one.
void lock_ring(int own, int count) {
  pthread_mutex_lock(&plain[own]);
  pthread_barrier_wait(&barrier);
  pthread_mutex_lock(&plain[(own + 1) % count]);
}

// The same with std::mutex and its guards.
void lock_ring_standard(int own, int count) {
  std::lock_guard<std::mutex> first(ring_of_standard[own]);
  pthread_barrier_wait(&barrier);
  std::lock_guard<std::mutex> second(ring_of_standard[(own + 1) % count]);
}

// The twin: all take their mutexes in one order, so the first gets both and stays.
void lock_in_order(int own, int count) {
  if (own) pthread_barrier_wait(&barrier);
  std::lock_guard<std::mutex> first(ring_of_standard[0]);
  if (!own) pthread_barrier_wait(&barrier);
  std::lock_guard<std::mutex> second(ring_of_standard[count - 1]);
  if (!own) stay();
}

void take(const char *what) {
  if (!strcmp(what, "plain")) pthread_mutex_lock(&plain[0]);
  if (!strcmp(what, "inheriting")) pthread_mutex_lock(&inheriting);
  if (!strcmp(what, "robust")) pthread_mutex_lock(&robust);
  if (!strcmp(what, "recursive")) pthread_mutex_lock(&recursive);
  if (!strcmp(what, "standard")) standard.lock();
  if (!strcmp(what, "shared_write")) write_locked.lock();
  if (!strcmp(what, "shared_read")) write_locked.lock_shared();
  if (!strcmp(what, "rw_write")) pthread_rwlock_wrlock(&read_locked);
  if (!strcmp(what, "rw_read")) pthread_rwlock_rdlock(&read_locked);
  if (!strcmp(what, "semaphore")) sem_wait(&empty);
  if (!strcmp(what, "condition")) {
    std::unique_lock<std::mutex> lock(for_condition);
    condition.wait(lock, [] { return false; });
  }
  if (!strcmp(what, "condition_timed")) {
    std::unique_lock<std::mutex> lock(for_condition);
    condition.wait_for(lock, std::chrono::seconds(3000), [] { return false; });
  }
}

void let_go(const char *what) {
  if (!strcmp(what, "plain")) pthread_mutex_unlock(&plain[0]);
}

void hold(const char *what, int said) {
  take(what);
  if (write(said, ".", 1) == 1) stay();
}

// Starts a thread that stays, says its tid, and joins it.
void join(int said) {
  std::thread other([said] {
    int tid = (int)syscall(SYS_gettid);
    if (write(said, &tid, sizeof tid) == sizeof tid) stay();
  });
  other.join();
}
}

// Without Python: a ring of ARGV[2] mutexes. The handshake is the one of tests/programs/handshake.py.
int main(int argc, char **argv) {
  int count = argc > 2 ? atoi(argv[2]) : 2, tids[2];
  if (pipe(tids)) return 1;
  prepare(count);
  for (int own = 0; own < count; own++)
    std::thread([own, count, tids] {
      int said[2] = {own, (int)syscall(SYS_gettid)};
      if (write(tids[1], said, sizeof said) == sizeof said) lock_ring(own, count);
    }).detach();
  char line[200];
  int length = snprintf(line, sizeof line, "%d", getpid());
  for (int i = 0; i < count; i++) {
    int said[2];  // in any order: which thread comes first is the scheduler's business
    if (read(tids[0], said, sizeof said) != sizeof said) return 1;
    length += snprintf(line + length, sizeof line - length, " t%d=%d", said[0], said[1]);
  }
  length += snprintf(line + length, sizeof line - length, "\n");
  if (write(atoi(getenv("HANDSHAKE_SAY_FD")), line, length) != length) return 1;
  stay();
}
