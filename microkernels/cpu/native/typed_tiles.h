/* Tile registers of AMX: whether this process may use them, and the few instructions on them that typed_amx.h needs.
 *
 * HT_TILES_IN_C: the same instructions in plain C, as Intel's manual says them, for hosts that have none. Registers are named by literal
 * numbers: the intrinsics write them into assembly as they stand. */
#include <stdatomic.h>

/* What is copied must be there before a tile is loaded from it: gcc 12's intrinsics do not say that they read memory. */
#define HT_WRITTEN() __asm__ volatile("" ::: "memory")

typedef struct { /* what ldtilecfg reads */
  uint8_t palette, start, unused[14];
  uint16_t bytes[16]; /* of a row of each register */
  uint8_t rows[16];
} ht_tiles;

#ifdef HT_TILES_IN_C
#define HT_APART __attribute__((noinline))

static _Thread_local struct {
  ht_tiles shape;
  int32_t word[8][16][16];
} ht_tile_registers;

static int ht_tiles_here(void) { return 1; }

HT_APART static void ht_tile_load(int to, const void* from, int64_t stride) {
  for (int row = 0; row < ht_tile_registers.shape.rows[to]; ++row)
    memcpy(ht_tile_registers.word[to][row], (const char*)from + row * stride, 64);
}

HT_APART static void ht_tile_store(int from, void* to, int64_t stride) {
  for (int row = 0; row < ht_tile_registers.shape.rows[from]; ++row)
    memcpy((char*)to + row * stride, ht_tile_registers.word[from][row], 64);
}

static float ht_tile_widened(int32_t word, int high) {
  int32_t bits = high ? (int32_t)((uint32_t)word & 0xffff0000u) : (int32_t)((uint32_t)word << 16);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Even and odd terms have sums of their own, from zero; they are added to each other, and that to what the register holds. */
HT_APART static void ht_tile_bf16(int to, int a, int b) {
  for (int row = 0; row < ht_tile_registers.shape.rows[to]; ++row)
    for (int column = 0; column < 16; ++column) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < 16; ++k) {
        const int32_t x = ht_tile_registers.word[a][row][k], w = ht_tile_registers.word[b][k][column];
        even = __builtin_fmaf(ht_tile_widened(x, 0), ht_tile_widened(w, 0), even);
        odd = __builtin_fmaf(ht_tile_widened(x, 1), ht_tile_widened(w, 1), odd);
      }
      memcpy(&sum, &ht_tile_registers.word[to][row][column], sizeof sum);
      sum += even + odd;
      memcpy(&ht_tile_registers.word[to][row][column], &sum, sizeof sum);
    }
}

HT_APART static void ht_tile_bytes(int to, int a, int b, int with_sign) {
  for (int row = 0; row < ht_tile_registers.shape.rows[to]; ++row)
    for (int column = 0; column < 16; ++column) {
      uint32_t sum = (uint32_t)ht_tile_registers.word[to][row][column];
      for (int k = 0; k < 16; ++k) {
        uint8_t x[4];
        int8_t w[4];
        memcpy(x, &ht_tile_registers.word[a][row][k], 4);
        memcpy(w, &ht_tile_registers.word[b][k][column], 4);
        for (int i = 0; i < 4; ++i) sum += (uint32_t)((with_sign ? (int8_t)x[i] : x[i]) * w[i]);
      }
      ht_tile_registers.word[to][row][column] = (int32_t)sum;
    }
}

#define HT_TILES_BEGIN(shapes) (ht_tile_registers.shape = *(shapes))
#define HT_TILES_END() ((void)0)
#define HT_TILE_ZERO(to) memset(ht_tile_registers.word[to], 0, sizeof ht_tile_registers.word[to])
#define HT_TILE_LOAD(to, from, stride) ht_tile_load(to, from, stride)
#define HT_TILE_STORE(from, to, stride) ht_tile_store(from, to, stride)
#define HT_TILE_BF16(to, a, b) ht_tile_bf16(to, a, b)
#define HT_TILE_PLAIN(to, a, b) ht_tile_bytes(to, a, b, 0)
#define HT_TILE_SIGNED(to, a, b) ht_tile_bytes(to, a, b, 1)
#else
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HT_REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define HT_TILE_DATA 18              /* XFEATURE_XTILEDATA */

/* Whether the CPU has tiles for bf16 and bytes, and the kernel lets this process use them: it is asked once for all threads. Kernels before
 * 5.16 and some sandboxes refuse. */
static int ht_tiles_here(void) {
  static atomic_int known; /* 0 not asked, 1 no, 2 yes */
  int found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == 0) {
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* amx_bf16, amx_tile, amx_int8 */
    unsigned a, b, c, d;
    found = 1;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted)
      found += syscall(SYS_arch_prctl, HT_REQUEST_PERMISSION, HT_TILE_DATA) == 0;
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return found == 2;
}

#define HT_TILES_BEGIN(shapes) _tile_loadconfig(shapes)
#define HT_TILES_END() _tile_release()
#define HT_TILE_ZERO(to) _tile_zero(to)
#define HT_TILE_LOAD(to, from, stride) _tile_loadd(to, from, stride)
#define HT_TILE_STORE(from, to, stride) _tile_stored(from, to, stride)
#define HT_TILE_BF16(to, a, b) _tile_dpbf16ps(to, a, b)
#define HT_TILE_PLAIN(to, a, b) _tile_dpbusd(to, a, b)
#define HT_TILE_SIGNED(to, a, b) _tile_dpbssd(to, a, b)
#endif
