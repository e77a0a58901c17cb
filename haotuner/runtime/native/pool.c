/* A fork-aware pool of workers that help one caller at a time.
 *
 * Life of a job: the caller takes the pool (`busy`), fills `job`, opens the gate and moves `epoch`. A worker that sees a
 * new epoch counts itself in through the gate, works, counts itself out. The caller works too, closes the gate when no
 * chunk is left, and waits only for workers inside: one that never woke up in time is not waited for.
 * Workers spin for HT_SPIN_US after a job, then sleep on the epoch (futex): at most one wake-up call a job. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ht.h"

#define HT_SPIN_US 50      /* a server's next layer follows within this; longer burns a core that others could use */
#define HT_GATE_CLOSED INT_MIN
#define HT_STACK_BYTES (256 * 1024) /* a chunk needs under 8 KiB */

typedef struct { /* the chunks of one participant: [next, end) */
  _Alignas(64) atomic_llong next;
  int64_t end;
} lane;

static struct {
  _Alignas(64) atomic_int epoch;    /* futex word: moves with every job */
  _Alignas(64) atomic_int gate;     /* workers inside; HT_GATE_CLOSED added while no job is open */
  _Alignas(64) atomic_int busy;     /* a caller owns the pool */
  _Alignas(64) atomic_int sleepers;
  _Alignas(64) atomic_int callers;  /* parallel calls that run now, the owner's included */
  atomic_int stop;
  atomic_int workers;               /* started; written by the owner of `busy` only */
  int atfork_done;
  pthread_t threads[HT_MAX_THREADS];
  lane lanes[HT_MAX_THREADS];
  int lane_count;                   /* participants invited to the job, the caller included */
  void (*body)(void*, int64_t);
  void* arg;
  _Atomic(ht_team_fn) team;         /* the process's OpenMP threads help instead of our own */
  atomic_int members;               /* of the team, counted in as they come */
} pool = {.gate = HT_GATE_CLOSED};

static void relax(void) { __builtin_ia32_pause(); }

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t); /* vDSO: no system call */
  return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* With c callers at once, c-1 of them run alone on their own threads: as many helpers leave, so that a process never
 * keeps more threads busy than it has callers or than one call asked for. */
static int surplus(int self, int count) {
  return self > 0 && self >= count - atomic_load_explicit(&pool.callers, memory_order_relaxed) + 1;
}

static void work(int self) {
  int count = pool.lane_count;
  for (int i = 0; i < count; ++i) { /* own lane first, then the others in turn */
    lane* l = &pool.lanes[(self + i) % count];
    while (!surplus(self, count) && atomic_load_explicit(&l->next, memory_order_relaxed) < l->end) {
      int64_t chunk = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
      if (chunk < l->end) pool.body(pool.arg, chunk);
    }
  }
}

static int enter(void) { /* count in, unless the gate is closed */
  int inside = atomic_load_explicit(&pool.gate, memory_order_relaxed);
  while (inside >= 0)
    if (atomic_compare_exchange_weak_explicit(&pool.gate, &inside, inside + 1, memory_order_acquire, memory_order_relaxed))
      return 1;
  return 0;
}

static void* worker(void* arg) {
  int self = (int)(intptr_t)arg;
  int seen = 0; /* started before the first job: epoch 0 */
  for (;;) {
    int64_t until = 0;
    int epoch;
    for (int spins = 0; (epoch = atomic_load_explicit(&pool.epoch, memory_order_acquire)) == seen; ++spins) {
      relax();
      if (spins % 64 != 63) continue; /* the clock costs as much as many pauses */
      if (until == 0) until = now_us() + HT_SPIN_US;
      if (now_us() < until) continue;
      atomic_fetch_add_explicit(&pool.sleepers, 1, memory_order_seq_cst);
      syscall(SYS_futex, &pool.epoch, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); /* returns at once if the epoch moved */
      atomic_fetch_sub_explicit(&pool.sleepers, 1, memory_order_seq_cst);
      until = 0;
    }
    seen = epoch;
    if (atomic_load_explicit(&pool.stop, memory_order_acquire)) return NULL;
    if (!enter()) continue;
    if (self < pool.lane_count) work(self);
    atomic_fetch_sub_explicit(&pool.gate, 1, memory_order_release);
  }
}

static void forget_threads(void) { /* in a forked child: the workers do not exist there, nor do OpenMP's, which would be waited for */
  atomic_store(&pool.team, NULL);
  pool.workers = 0;
  atomic_store(&pool.epoch, 0);
  atomic_store(&pool.gate, HT_GATE_CLOSED);
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.callers, 0);
  atomic_store(&pool.busy, 0);
}

static int watch_forks(void) { /* by the owner of `busy` */
  if (!pool.atfork_done) pool.atfork_done = pthread_atfork(NULL, NULL, forget_threads) == 0;
  return pool.atfork_done;
}

static void start_workers(int wanted) {
  if (!watch_forks()) return;
  pthread_attr_t attr;
  if (pthread_attr_init(&attr) != 0) return;
  pthread_attr_setstacksize(&attr, HT_STACK_BYTES);
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the application's threads */
  while (pool.workers < wanted) {
    int index = pool.workers; /* participant 0 is the caller */
    if (pthread_create(&pool.threads[index], &attr, worker, (void*)(intptr_t)(index + 1)) != 0) break;
    ++pool.workers;
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&attr);
}

static void run_alone(void (*body)(void*, int64_t), void* arg, int64_t chunks) {
  for (int64_t i = 0; i < chunks; ++i) body(arg, i);
}

static void share(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  for (int i = 0; i < threads; ++i) {
    atomic_store_explicit(&pool.lanes[i].next, chunks * i / threads, memory_order_relaxed);
    pool.lanes[i].end = chunks * (i + 1) / threads;
  }
  pool.lane_count = threads;
  pool.body = body;
  pool.arg = arg;
}

static void work_in_team(void* unused) { /* the first member takes lane 0, which stays to the end whatever `surplus` says */
  (void)unused;
  int self = atomic_fetch_add_explicit(&pool.members, 1, memory_order_relaxed);
  if (self < pool.lane_count) work(self);
}

static void help_one(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  int idle = 0;
  if (!atomic_compare_exchange_strong(&pool.busy, &idle, 1)) {
    run_alone(body, arg, chunks);
    return;
  }
  ht_team_fn team = atomic_load_explicit(&pool.team, memory_order_relaxed);
  if (team != NULL) {
    share(body, arg, chunks, threads);
    atomic_store_explicit(&pool.members, 0, memory_order_relaxed);
    team(work_in_team, NULL, (unsigned)threads, 0); /* comes back when every member is done */
    atomic_store_explicit(&pool.busy, 0, memory_order_release);
    return;
  }
  if (pool.workers < threads - 1) start_workers(threads - 1);
  if (threads > pool.workers + 1) threads = pool.workers + 1;
  if (threads == 1) { /* no thread could be started */
    atomic_store(&pool.busy, 0);
    run_alone(body, arg, chunks);
    return;
  }
  share(body, arg, chunks, threads);
  atomic_store_explicit(&pool.gate, 0, memory_order_release);
  atomic_fetch_add_explicit(&pool.epoch, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&pool.sleepers, memory_order_seq_cst) > 0)
    syscall(SYS_futex, &pool.epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  work(0);
  atomic_fetch_add_explicit(&pool.gate, HT_GATE_CLOSED, memory_order_acq_rel);
  while (atomic_load_explicit(&pool.gate, memory_order_acquire) != HT_GATE_CLOSED) relax();
  atomic_store_explicit(&pool.busy, 0, memory_order_release);
}

static void own_run(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  atomic_fetch_add_explicit(&pool.callers, 1, memory_order_relaxed);
  help_one(body, arg, chunks, threads);
  atomic_fetch_sub_explicit(&pool.callers, 1, memory_order_relaxed);
}

static int own_workers(void) { return pool.workers; }

static void own_team(ht_team_fn team) {
  int idle = 0;
  while (!atomic_compare_exchange_weak(&pool.busy, &idle, 1)) { /* no call is inside the old team while it changes */
    idle = 0;
    relax();
  }
  if (watch_forks()) atomic_store(&pool.team, team);
  atomic_store_explicit(&pool.busy, 0, memory_order_release);
}

/* One pool for all packs of a process: the linker makes every library's `ht_pool_slot_v2` the same object (a unique symbol,
 * ELF's STB_GNU_UNIQUE), namely that of the library loaded first, and never unloads that one. Its code runs the pool. */
typedef struct {
  ht_pool_fn run;
  int (*workers)(void);
  void (*use_team)(ht_team_fn team);
  _Atomic(ht_pool_fn) injected;
} ht_pool_slot;

extern ht_pool_slot ht_pool_slot_v2;
#ifndef __clang__
__attribute__((visibility("default"))) ht_pool_slot ht_pool_slot_v2 = {own_run, own_workers, own_team, NULL};
__asm__(".type ht_pool_slot_v2, @gnu_unique_object");
#else /* which writes .globl for every variable, and refuses another binding then */
__attribute__((used)) static const ht_pool_slot named_in_assembly = {own_run, own_workers, own_team, NULL}; /* so that they are there */
__asm__(
    ".pushsection .data.rel, \"aw\"\n"
    ".balign 32\n"
    ".type ht_pool_slot_v2, @gnu_unique_object\n"
    ".size ht_pool_slot_v2, 32\n"
    "ht_pool_slot_v2: .quad own_run, own_workers, own_team, 0\n"
    ".popsection");
_Static_assert(sizeof(ht_pool_slot) == 32, "the slot's size in assembly");
#endif

void ht_pool_run(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  if (threads > HT_MAX_THREADS) threads = HT_MAX_THREADS;
  if (threads > chunks) threads = (int)chunks;
  if (threads <= 1) {
    run_alone(body, arg, chunks);
    return;
  }
  ht_pool_fn injected = atomic_load_explicit(&ht_pool_slot_v2.injected, memory_order_acquire);
  (injected != NULL ? injected : ht_pool_slot_v2.run)(body, arg, chunks, threads);
}

void ht_pool_inject(ht_pool_fn run) { atomic_store_explicit(&ht_pool_slot_v2.injected, run, memory_order_release); }

void ht_pool_use_team(ht_team_fn team) { ht_pool_slot_v2.use_team(team); }

int ht_pool_workers(void) { return ht_pool_slot_v2.workers(); }

__attribute__((destructor)) static void stop_workers(void) { /* dlclose and exit: no thread may outlive its code */
  int idle = 0;
  while (!atomic_compare_exchange_weak(&pool.busy, &idle, 1)) {
    idle = 0;
    relax();
  }
  atomic_store_explicit(&pool.stop, 1, memory_order_release);
  atomic_fetch_add_explicit(&pool.epoch, 1, memory_order_seq_cst);
  syscall(SYS_futex, &pool.epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  for (int i = 0; i < pool.workers; ++i) pthread_join(pool.threads[i], NULL);
  pool.workers = 0;
}
