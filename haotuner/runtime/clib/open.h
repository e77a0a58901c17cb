/* The insides of the public handles, shared by open.c and linear.c. */
#ifndef HT_OPEN_H_
#define HT_OPEN_H_

#include <stdatomic.h>

#include "arena.h"
#include "c_api.h"
#include "files.h"
#include "haotuner.h"

struct ht_op {
  ht_pack* pack;
  int index;
  ht_door_op facts;
};

struct ht_pack {
  const ht_door* door;
  void* library;
  int threads;
  int device;  /* that the pack computes on, as CUDA counts; -1: the CPU */
  int planned; /* its plans were made for this kind of device */
  ht_bytecodes bytecodes; /* schedules of its whole models; none of packs whose library holds them */
  atomic_int closed;
  ht_arena arena;
  atomic_int holders; /* the owner until ht_pack_close, and every linear */
  ht_op ops[];
};

void ht_pack_release(ht_pack* pack);

#endif /* HT_OPEN_H_ */
