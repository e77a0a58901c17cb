/* Opening packs with the C library where each thing that it asks the system and the driver for is refused in turn:
 * drive_doors PACK OP CPU_PACK. Prints "right"; leaks and stray reads are a sanitizer's. */
#define _GNU_SOURCE
#include <dirent.h>

#include "doors.h"

static int files(void) {
  int count = 0;
  DIR* all = opendir("/proc/self/fd");
  while (readdir(all) != NULL) ++count;
  closedir(all);
  return count;
}

static void finding(void) {
  static const struct {
    const char *name, *answer, *words;
    long nth;
  } planned[] = {{"cuInit", "3", "forked after CUDA began", 1},
                 {"cuInit", "999", "cuInit answers CUDA error 999", 1},
                 {"cuInit", "100", "the CUDA driver shows 0", 1},
                 {"cuDeviceGetCount", "2", "there is no device cuda:0", 1},
                 {"cuDeviceGet", "2", "there is no device cuda:0", 1},
                 {"cuDeviceGetAttribute", "2", "does not describe the device", 1},
                 {"cuDeviceGetAttribute", "2", "does not describe the device", 2},
                 {"cuDeviceGetAttribute", "2", "does not describe the device", 3},
                 {"cuDriverGetVersion", "2", "does not describe the device", 1}};
  static const char* const needed[] = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuDriverGetVersion"};
  ht_gpu gpu;
  for (size_t i = 0; i < sizeof planned / sizeof *planned; ++i) {
    fail(planned[i].name, planned[i].nth, planned[i].answer);
    REFUSED(ht_gpu_find(0, &gpu, &error), HT_NO_DEVICE, planned[i].words);
    fail(planned[i].name, 0, "");
  }
  for (size_t i = 0; i < sizeof needed / sizeof *needed; ++i) {
    hidden = needed[i];
    REFUSED(ht_gpu_find(0, &gpu, &error), HT_NO_DEVICE, "libcuda.so.1 is no CUDA driver");
  }
  hidden = NULL, unopened = "libcuda";
  REFUSED(ht_gpu_find(0, &gpu, &error), HT_NO_DEVICE, "no CUDA driver (");
  unopened = NULL;
  REFUSED(ht_gpu_find(-1, &gpu, &error), HT_NO_DEVICE, "no device cuda:-1");
  REFUSED(ht_gpu_find(99, &gpu, &error), HT_NO_DEVICE, "no device cuda:99");
  for (long unsaid = 0; unsaid < 3; ++unsaid) { /* clock and width of the bus may be unknown */
    if (unsaid) fail("cuDeviceGetAttribute", 3 + unsaid, "2");
    REFUSED(ht_gpu_find(0, &gpu, &error), HT_OK, "");
    fail("cuDeviceGetAttribute", 0, "");
    CHECK(gpu.ordinal == 0 && gpu.major >= 7 && gpu.units > 0 && gpu.driver >= 12000 && (unsaid ? gpu.gbps == 0 : gpu.gbps > 1));
  }
}

static void suiting(void) {
  static const struct {
    const char* arch;
    int major, minor, runs;
  } codes[] = {{"sm_80", 8, 0, 1}, {"sm_80", 8, 9, 1}, {"sm_89", 8, 0, 0},  {"sm_80", 9, 0, 0},  {"sm_90a", 9, 0, 1}, {"sm_100", 10, 3, 1},
               {"sm_90", 8, 9, 0}, {"sm_80a", 8, 9, 0}, {"sm_100a", 10, 3, 0}, {"x86-64", 8, 0, 0}, {"sv_80", 8, 0, 0},  {"sm_", 8, 0, 0}};
  ht_gpu gpu = {0};
  ht_manifest manifest = {.arch = "sm_80"};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; ++i) {
    gpu.major = codes[i].major, gpu.minor = codes[i].minor;
    CHECK(ht_gpu_runs(&gpu, codes[i].arch) == codes[i].runs);
  }
  gpu.driver = 12040;
  const double taken[] = {0, -1, 11040, 12040}, refused[] = {12050, 13000, 1e9};
  for (int i = 0; i < 4; ++i) {
    manifest.driver = taken[i];
    REFUSED(ht_gpu_takes(&gpu, &manifest, "pack", &error), HT_OK, "");
  }
  for (int i = 0; i < 3; ++i) {
    manifest.driver = refused[i];
    REFUSED(ht_gpu_takes(&gpu, &manifest, "pack", &error), HT_PACK_MISMATCH, "the one of this host serves CUDA 12.4");
  }
  gpu.units = 100, gpu.gbps = 1000, manifest.units = 50, manifest.gbps = 1000;
  CHECK(ht_gpu_distance(&gpu, &manifest) == 1);
  manifest.units = 200;
  CHECK(ht_gpu_distance(&gpu, &manifest) == 1);
  manifest.units = 100, manifest.gbps = 3000;
  CHECK(ht_gpu_distance(&gpu, &manifest) == 2);
  manifest.gbps = 0;
  CHECK(ht_gpu_distance(&gpu, &manifest) == 0);
  manifest.gbps = 3000, gpu.gbps = 0;
  CHECK(ht_gpu_distance(&gpu, &manifest) == 0);
}

static const ht_door* no_door(void) { return NULL; }

/* A pack on a device whose door is older than devices, and one whose library refuses to begin. */
static void older(const char* path) {
  ht_error said;
  ht_pack* pack;
  CHECK(ht_pack_open_on(path, 0, &pack, &said) == HT_OK);
  mine = *pack->door;
  ht_pack_close(pack);
  other_door = my_door, mine.version = 2;
  REFUSED(ht_pack_open_on(path, 0, &pack, &error), HT_PACK_MISMATCH, "was packed before devices were served");
  other_door = NULL;
}

static void opening(const char* path, int device) {
  ht_pack* pack = NULL;
#define OPEN(path_) (device < 0 ? ht_pack_open(path_, 1, &pack, &error) : ht_pack_open_on(path_, device, &pack, &error))
  const int before = files(), held = libraries;
  REFUSED(OPEN("/no/such/pack"), HT_PACK_INVALID, "no such pack");
  REFUSED(OPEN(NULL), HT_PACK_INVALID, "path is NULL");
  REFUSED((device < 0 ? ht_pack_open(path, 1, NULL, &error) : ht_pack_open_on(path, device, NULL, &error)), HT_BAD_VALUE, "out is NULL");
  REFUSED(OPEN("/"), HT_PACK_INVALID, "manifest.json: cannot read it");
  REFUSED(OPEN("/proc/self/maps"), HT_PACK_INVALID, "no such pack (Not a directory)");
  const int tried = loads;
  spoiled = 1;
  REFUSED(OPEN(path), HT_PACK_INVALID, "sha256");
  CHECK(loads == tried); /* none of its code was run */
  spoiled = 0, unopened = "/lib/";
  REFUSED(OPEN(path), HT_PACK_INVALID, "cannot be loaded");
  unopened = NULL, foreign = 1;
  REFUSED(OPEN(path), HT_PACK_INVALID, "was exchanged while it was loaded");
  foreign = 0, elsewhere = 1;
  REFUSED(OPEN(path), HT_PACK_INVALID, "was exchanged while it was loaded");
  elsewhere = 0, vanished = 1;
  REFUSED(OPEN(path), HT_PACK_INVALID, "was exchanged while it was loaded");
  vanished = 0, opens = 0;
  if (device < 0) { /* a device's library has a table of its own by then, which would be a leak */
    starved = 1;
    REFUSED(OPEN(path), HT_NO_MEMORY, "no memory to open");
    CHECK(opens == 1 && starved == 0);
  }
  hidden = HT_DOOR_SYMBOL;
  REFUSED(OPEN(path), HT_PACK_MISMATCH, "speaks door version 0");
  hidden = NULL, other_door = no_door;
  REFUSED(OPEN(path), HT_PACK_MISMATCH, "speaks door version 0");
  other_door = NULL, foreign = 2, opens = 0; /* another pack took the place of the one that was read: again */
  REFUSED(OPEN(path), HT_OK, "");
  CHECK(opens == 1 && pack != NULL && foreign == 0);
  ht_pack_close(pack);
  vanished = 2;
  REFUSED(OPEN(path), HT_OK, "");
  CHECK(vanished == 0);
  ht_pack_close(pack);
  if (device < 0) { /* for ever: it gives up */
    foreign = 1 << 20;
    REFUSED(OPEN(path), HT_PACK_INVALID, "was exchanged while it was loaded");
    CHECK(foreign == (1 << 20) - 200);
    foreign = 0;
  }
  CHECK(files() == before);
  CHECK(libraries - held == (device < 0 ? 0 : 2)); /* graphs may replay what was loaded on a device: it stays */
  ht_pack_close(NULL);
}

int main(int argc, char** argv) {
  CHECK(argc == 4);
  find_driver();
  finding();
  suiting();
  opening(argv[3], -1);
  opening(argv[1], 0);
  older(argv[1]);
  printf("right\n");
  return 0;
}
