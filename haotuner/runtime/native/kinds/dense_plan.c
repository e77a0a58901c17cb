/* Rows -> composition of a dense call. */
#include "dense.h"

void ht_dense_look_up(const ht_dense* op, const ht_plan* table, int64_t m, ht_composition* out) {
  const ht_dense_plan* plan = table->data;
  int64_t limit = table->table.count[0], inside = m;
  int64_t extra = 0; /* bulk tiles beyond the table */
  const ht_kernel* bulk = &op->kernels[plan->entries[limit - 1].kernel[0]];
  if (m > limit) { /* step back by whole bulk tiles into the table; regions are exact, so bulk->mr <= limit */
    extra = (m - limit + bulk->mr - 1) / bulk->mr;
    inside = m - extra * bulk->mr;
  }
  int count = 0;
  if (extra > 0) {
    out->part[0].kernel = bulk;
    out->part[0].tiles = extra;
    count = 1;
  }
  const int64_t extents[1] = {inside};
  const ht_entry* entry = &plan->entries[ht_look_up(&table->table, extents)];
  for (int i = 0; i < HT_MAX_REGIONS && entry->tiles[i] != 0; ++i) {
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
  out->split = m > limit ? plan->entries[limit - 1].split : entry->split;
  out->row_block = plan->row_block > 0 && m >= plan->row_block_from ? plan->row_block : 0;
  out->k_block = 0;
  if (op->k_block > 0 && m >= op->k_block_from) {
    out->k_block = op->k_block;
    out->row_block = op->k_block_rows;
  }
}
