/* The loop that FMA peaks are measured with. Needs -DVECTOR_BYTES=16|32|64, -DCHAINS=n and the flags of one instruction set. */
#include <stdint.h>

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
#define LANES (VECTOR_BYTES / 4)

static volatile float float_sink;

/* CHAINS independent multiply-adds a round: enough to hide the latency on every pipe, few enough to stay in registers. */
static void fma_rounds(uint64_t rounds) {
    vec x[CHAINS], a = (vec){0} + 0.5f, b = (vec){0} + 1.0f; /* x = x/2 + 1 tends to 2: no denormals, no overflow */
    __asm__ volatile("" : "+x"(a), "+x"(b));
    for (int i = 0; i < CHAINS; i++) x[i] = a * (float)i;
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) x[i] = x[i] * a + b;
    }
    vec sum = x[0];
    for (int i = 1; i < CHAINS; i++) sum += x[i];
    float_sink = sum[0];
}
