/* Shape -> composition. One function, used when tuning (through the measuring library) and when serving. */
#include "ht.h"

void ht_plan_look_up(const ht_op* op, const ht_plan* plan, int64_t m, ht_composition* out) {
  int64_t inside = m;
  int64_t extra = 0; /* bulk tiles beyond the table */
  const ht_kernel* bulk = &op->kernels[plan->entries[plan->limit - 1].kernel[0]];
  if (m > plan->limit) { /* step back by whole bulk tiles into the table; regions are exact, so bulk->mr <= limit */
    extra = (m - plan->limit + bulk->mr - 1) / bulk->mr;
    inside = m - extra * bulk->mr;
  }
  int count = 0;
  if (extra > 0) {
    out->part[0].kernel = bulk;
    out->part[0].tiles = extra;
    count = 1;
  }
  const ht_entry* entry = &plan->entries[inside - 1];
  for (int i = 0; i < 3 && entry->tiles[i] != 0; ++i) {
    const ht_kernel* kernel = &op->kernels[entry->kernel[i]];
    if (extra > 0 && kernel == bulk) { /* the same kernel: one longer region */
      out->part[0].tiles += entry->tiles[i];
      continue;
    }
    out->part[count].kernel = kernel;
    out->part[count].tiles = entry->tiles[i];
    ++count;
  }
  out->count = count;
  out->split = m > plan->limit ? plan->entries[plan->limit - 1].split : entry->split;
  out->row_block = plan->row_block > 0 && m >= plan->row_block_from ? plan->row_block : 0;
  out->k_block = 0;
  if (op->k_block > 0 && m >= op->k_block_from) {
    out->k_block = op->k_block;
    out->row_block = op->k_block_rows;
  }
}
