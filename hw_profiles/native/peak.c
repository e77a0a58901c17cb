/* What one host can do at best: fp32 FMA rate, core clock, and read bandwidth from main memory.
 *
 *     peak THREADS BYTES_ONE BYTES_EACH CPU,CPU,... ROUNDS_ONE ROUNDS_EACH
 *
 * THREADS  threads of the all-core figures, thread i pinned to the i-th CPU of the list
 * BYTES_*  memory that one thread alone, and each thread together, reads; well over the last-level cache
 *
 * ROUNDS_* how often they are read in every way
 *
 * Prints one JSON object. Interference by other processes only lowers a rate, so every rate is the best of several
 * short samples; `spread` is (best - median) / best of the one-core FMA samples and tells a busy host.
 * Compiled with -DVECTOR_BYTES=16|32|64 and -DCHAINS=n, and the flags of one instruction set.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "fma.h"
#include "read.h"

#define MAX_THREADS 1024
#define SLICES 256
#define WINDOWS 100 /* of 2 ms each: some of them meet no other process on any core */

static volatile long long int_sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double fma_seconds(uint64_t rounds) {
    double start = now();
    fma_rounds(rounds);
    return now() - start;
}

/* A chain of dependent register additions takes one cycle each on every x86-64 core: its rate is the clock. */
static double add_seconds(uint64_t rounds) {
    uint64_t x = 1, one = 1;
    double start = now();
    for (uint64_t r = 0; r < rounds; r++) __asm__ volatile(".rept 100\n\tadd %1, %0\n\t.endr" : "+r"(x) : "r"(one));
    int_sink = (long long)x;
    return now() - start;
}

static char *fresh(size_t bytes) {
    char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return NULL;
    madvise(data, bytes, MADV_HUGEPAGE); /* page walks are not what is measured; refusal does no harm */
    for (size_t i = 0; i < bytes; i += 4096) data[i] = (char)i; /* unwritten pages all read as one shared zero page */
    return data;
}

typedef struct {
    int index, cpu, threads, passes;
    uint64_t rounds;
    size_t bytes;
    int failed;
} Job;

static pthread_barrier_t barrier;
static double started[MAX_THREADS], ended[MAX_THREADS];
static double best_fma_all, best_read_all;

/* FMA rates of the threads add up, whoever woke late. Readers compete: there the window is the first start to the last end. */
static void together(const Job *job, double work_per_thread, int compete, double *best) {
    pthread_barrier_wait(&barrier);
    if (job->index == 0) {
        double first = started[0], last = ended[0], rate = 0;
        for (int i = 0; i < job->threads; i++) {
            if (started[i] < first) first = started[i];
            if (ended[i] > last) last = ended[i];
            rate += work_per_thread / (ended[i] - started[i]);
        }
        if (compete) rate = work_per_thread * job->threads / (last - first);
        if (rate > *best) *best = rate;
    }
    pthread_barrier_wait(&barrier);
}

static void *worker(void *argument) {
    Job *job = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(job->cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* refusal leaves the placement to the kernel: still a valid, lower rate */
    for (int repeat = 0; repeat < WINDOWS; repeat++) {
        pthread_barrier_wait(&barrier);
        started[job->index] = now();
        fma_seconds(job->rounds);
        ended[job->index] = now();
        together(job, (double)job->rounds * CHAINS * LANES * 2, 0, &best_fma_all);
    }
    char *data = fresh(job->bytes);
    if (!data) job->failed = 1;
    for (int repeat = 0; repeat < job->passes; repeat++) {
        pthread_barrier_wait(&barrier);
        started[job->index] = now();
        if (data) int_sink = read_pass(data, job->bytes, repeat % VARIANTS);
        ended[job->index] = now();
        together(job, (double)job->bytes, 1, &best_read_all);
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: peak THREADS BYTES_ONE BYTES_EACH CPU,CPU,... ROUNDS_ONE ROUNDS_EACH\n"), 2;
    int threads = atoi(argv[1]), passes_one = atoi(argv[5]) * VARIANTS, passes_each = atoi(argv[6]) * VARIANTS;
    size_t bytes_one = strtoull(argv[2], NULL, 10), bytes_each = strtoull(argv[3], NULL, 10);
    if (threads < 1 || threads > MAX_THREADS || bytes_one < 1 << 20 || bytes_each < 1 << 20) return 2;
    if (passes_one < 1 || passes_each < 1) return 2;

    /* Wake the clock and the wide units for 30 ms, and learn how many rounds fill a slice. */
    double begin = now(), spent = 0;
    uint64_t rounds = 1000, adds = 1000;
    while (now() - begin < 0.03 || spent < 0.0002) {
        spent = fma_seconds(rounds);
        if (spent < 0.0002) rounds *= 2;
    }
    rounds = (uint64_t)((double)rounds * 0.0003 / spent) + 1;
    adds = (uint64_t)((double)adds * 0.0003 / add_seconds(adds)) + 1;

    /* Pairs of 0.3 ms: short enough that a core which lowers its clock for wide vectors keeps it through the pair. */
    static double fma[SLICES], clock_hz[SLICES], per_cycle[SLICES];
    for (int i = 0; i < SLICES; i++) {
        fma[i] = (double)rounds * CHAINS / fma_seconds(rounds);
        clock_hz[i] = (double)adds * 100 / add_seconds(adds);
        per_cycle[i] = fma[i] / clock_hz[i];
    }
    qsort(fma, SLICES, sizeof *fma, ascending);
    qsort(clock_hz, SLICES, sizeof *clock_hz, ascending);
    qsort(per_cycle, SLICES, sizeof *per_cycle, ascending);

    char *data = fresh(bytes_one);
    double best_read = 0;
    for (int i = 0; data && i < passes_one; i++) {
        double start = now();
        int_sink = read_pass(data, bytes_one, i % VARIANTS);
        double rate = (double)bytes_one / (now() - start);
        if (rate > best_read) best_read = rate;
    }
    if (data) munmap(data, bytes_one);

    static Job jobs[MAX_THREADS];
    static pthread_t handles[MAX_THREADS];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    char *list = argv[4];
    for (int i = 0; i < threads; i++) {
        char *next = list;
        jobs[i] = (Job){.index = i, .threads = threads, .passes = passes_each, .rounds = rounds * 7, .bytes = bytes_each};
        jobs[i].cpu = (int)strtol(list, &next, 10);
        list = *next == ',' ? next + 1 : next;
        if (pthread_create(&handles[i], NULL, worker, &jobs[i])) return fprintf(stderr, "no thread %d\n", i), 3;
    }
    int failed = data == NULL;
    for (int i = 0; i < threads; i++) pthread_join(handles[i], NULL), failed |= jobs[i].failed;
    if (failed) return fprintf(stderr, "no memory for the bandwidth figures\n"), 3;

    /* Busy neighbours can spoil every common sample; all cores do at least what one of them did alone. */
    if (best_fma_all < fma[SLICES - 1] * LANES * 2) best_fma_all = fma[SLICES - 1] * LANES * 2;
    if (best_read_all < best_read) best_read_all = best_read;
    printf("{\"clock_mhz\": %.1f, \"fma_per_cycle\": %.3f, \"peak_gflops_unit\": %.2f, \"peak_gflops\": %.2f, "
           "\"memory_gbps_unit\": %.2f, \"memory_gbps\": %.2f, \"spread\": %.4f}\n",
           clock_hz[SLICES - 1] * 1e-6, per_cycle[SLICES / 2], fma[SLICES - 1] * LANES * 2e-9, best_fma_all * 1e-9,
           best_read * 1e-9, best_read_all * 1e-9, (fma[SLICES - 1] - fma[SLICES / 2]) / fma[SLICES - 1]);
    return 0;
}
