// Elements of 2 bytes from memory to shared memory by way of registers, for what has no cp.async: V at a time.

template <int V>
HT_DEVICE void ht_fetch(uint32_t* held, const void* from, bool inside) {
    if constexpr (V == 8) {
        const uint4 raw = inside ? *(const uint4*)from : uint4{0, 0, 0, 0};
        held[0] = raw.x, held[1] = raw.y, held[2] = raw.z, held[3] = raw.w;
    } else if constexpr (V == 4) {
        const uint2 raw = inside ? *(const uint2*)from : uint2{0, 0};
        held[0] = raw.x, held[1] = raw.y;
    } else if constexpr (V == 2) {
        held[0] = inside ? *(const uint32_t*)from : 0;
    } else {
        held[0] = inside ? *(const uint16_t*)from : 0;
    }
}

// The same for floats.
template <int V>
HT_DEVICE void ht_fetch_floats(float* held, const float* from, bool inside) {
    struct alignas(V * sizeof(float)) ht_piece {
        float elements[V];
    };
    ht_piece raw = {};
    if (inside) raw = *(const ht_piece*)from;
#pragma unroll
    for (int i = 0; i < V; i++) held[i] = raw.elements[i];
}

// The same for words of four bytes.
template <int V>
HT_DEVICE void ht_fetch_words(int* held, const int* from, bool inside) {
    ht_fetch_floats<V>((float*)held, (const float*)from, inside);
}

template <int V>
HT_DEVICE void ht_put(void* to, const uint32_t* held) {
    if constexpr (V == 8) {
        const uint4 raw = {held[0], held[1], held[2], held[3]};
        *(uint4*)to = raw;
    } else if constexpr (V == 4) {
        const uint2 raw = {held[0], held[1]};
        *(uint2*)to = raw;
    } else if constexpr (V == 2) {
        *(uint32_t*)to = held[0];
    } else {
        *(uint16_t*)to = (uint16_t)held[0];
    }
}
