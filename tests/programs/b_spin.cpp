// A thread that waits for a flag without sleeping, and one that computes without touching the system.
#include <stdint.h>

static volatile int flag;

extern "C" void spin() {
  while (!flag) {
  }
}

extern "C" void work() {
  static uint32_t table[1 << 16];
  uint64_t state = 1;
  for (uint64_t step = 0;; step++) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    table[state >> 48] += (uint32_t)(state >> 16) ^ (uint32_t)step;
  }
}
