#ifndef HT_SHORT  // units of products and of generated programs both begin with it
#define HT_SHORT
// Functions of what memory keeps in 16 bits: some ulp of fp32 off, a third of the instructions.
__device__ __forceinline__ float ht_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}
// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: 1.5e-7 off; near 0 the first term of the series, a ten-thousandth off.
__device__ __forceinline__ float ht_erf(float x) {
    const float z = fabsf(x), t = __fdividef(1.0f, fmaf(0.3275911f, z, 1.0f));
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    const float y = fmaf(-p * t, ht_exp(-z * z), 1.0f);
    return copysignf(z < 0.015625f ? z * 1.12837917f : y, x);
}
#endif
