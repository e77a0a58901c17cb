/* Branches of a chain: which side is taken, and its tensors under the names that both sides share. */
#include "model/host_ops.h"
#include "model/chain.h"

/* What a tensor of one element says, or the sizes. */
int ht_chain_decided(ht_chain_call* k, const ht_model_step* step) {
  int64_t holds = step->first < 0 ? k->c->sizes[step->at] : 0;
  if (step->first >= 0) {
    if (!ht_chain_there(k, step->first)) return ht_chain_damaged(k);
    DLTensor of = *ht_chain_at(k, step->first);
    if (ht_chain_bytes(&of) != of.dtype.bits / 8) return ht_refuse(k->error, "ValueError", "%s: the condition of a branch has not one element; the model takes no such request", k->m->name);
    if (ht_chain_seen(k, step->first, 0, 1, &of) != 0) return -1;
    holds = ht_between_nonzero(&of, NULL);
  }
  if (holds == HT_CHAIN_UNKNOWN) return ht_refuse(k->error, "ValueError", "%s: an extent of this request cannot be computed; this model takes no such request", k->m->name);
  return ht_chain_told(k, step->index, holds != 0);
}

int ht_chain_chosen(ht_chain_call* k, const ht_model_step* step) {
  const ht_model_tensor* t = &k->m->tensors[step->out];
  int32_t from = k->m->loops[step->first + (k->c->dims[step->index] != 1)];
  int64_t shape[HT_MODEL_AXES], count;
  if (!ht_chain_there(k, from)) return ht_chain_damaged(k);
  k->tensors[step->out] = *ht_chain_at(k, from);
  k->c->offsets[step->out] = k->c->offsets[from];
  const DLTensor* out = &k->tensors[step->out];
  for (int32_t i = 0; i < step->count; ++i)
    if (ht_chain_told(k, (int32_t)step->more[2 * i + 1], out->shape[step->more[2 * i]]) != 0) return -1;
  if (ht_model_extents(k->m, t, k->c->sizes, shape, &count, k->error) != 0) return -1;
  for (int32_t a = 0; a < t->rank; ++a)
    if (shape[a] != out->shape[a]) return ht_chain_damaged(k);
  return 0;
}

int ht_chain_required(ht_chain_call* k, const ht_model_step* step) {
  int64_t size = k->c->sizes[step->at];
  return size != 0 && size != HT_CHAIN_UNKNOWN ? 0 : ht_refuse(k->error, "ValueError", "%s: %s", k->m->name, step->called);
}
