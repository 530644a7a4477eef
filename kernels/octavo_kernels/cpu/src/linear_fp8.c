/* FP8 e4m3fn to float, every code exact, NaN included. */
#include "linear_lanes.h"

void fp8_to_float(const uint8_t *codes, float *out, int64_t count, int64_t threads) {
    const int64_t whole = count / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < whole; i += LANES) {
        vi code = vi_from_bytes(codes + i), nan = (code & 0x7f) == 0x7f;
        vf_store(out + i, (vf)((vi)(vf_from_e4m3(code << 24) * 256.0f) | (nan & 0x7fc00000)));
    }
    for (int64_t i = whole; i < count; i++) out[i] = e4m3_to_f32(codes[i]);
}
