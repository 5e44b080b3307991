#include <float.h>
#include <math.h>

#include "unit/cmocka_all.h"

#include "nn/rope.h"

/* inv_freq of transformers' ROPE_INIT_FUNCTIONS["llama3"] in float64, run under tools/oracle/float64.py:
 *   LlamaConfig(head_dim=dim, rope_parameters={"rope_type": "llama3", "rope_theta": base, "factor": factor,
 * "low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}) The first
 * group is that of Llama 3.1, the second that of Llama 3.2. All three bands of wavelengths occur. */
static const struct {
    int64_t dim;
    double base, factor, low, high;
    int64_t original, i;
    double frequency;
} LLAMA3[] = {
    {128, 500000, 8, 1, 4, 8192, 0, 1.0},
    {128, 500000, 8, 1, 4, 8192, 1, 0.8146172338565447},
    {128, 500000, 8, 1, 4, 8192, 16, 0.03760603093086393},
    {128, 500000, 8, 1, 4, 8192, 32, 0.0005248461609929547},
    {128, 500000, 8, 1, 4, 8192, 33, 0.00031269375038406517},
    {128, 500000, 8, 1, 4, 8192, 34, 0.00017850781276799638},
    {128, 500000, 8, 1, 4, 8192, 35, 9.556212353964683e-05},
    {128, 500000, 8, 1, 4, 8192, 36, 7.78465527393245e-05},
    {128, 500000, 8, 1, 4, 8192, 42, 2.2748928601828183e-05},
    {128, 500000, 8, 1, 4, 8192, 63, 3.068925988914511e-07},
    {64, 500000, 32, 1, 4, 8192, 0, 1.0},
    {64, 500000, 32, 1, 4, 8192, 1, 0.6636012376960885},
    {64, 500000, 32, 1, 4, 8192, 8, 0.03760603093086393},
    {64, 500000, 32, 1, 4, 8192, 16, 0.00042955679655936815},
    {64, 500000, 32, 1, 4, 8192, 17, 9.70828780262767e-05},
    {64, 500000, 32, 1, 4, 8192, 18, 1.9461638184831125e-05},
    {64, 500000, 32, 1, 4, 8192, 19, 1.291476718704739e-05},
    {64, 500000, 32, 1, 4, 8192, 31, 9.418306725434909e-08},
    {16, 10000, 4, 2, 3, 64, 1, 0.31622776601683794},
    {16, 10000, 4, 2, 3, 64, 2, 0.025},
    {16, 10000, 4, 2, 3, 64, 7, 7.905694150420948e-05},
};

TEST(llama3_scaling_matches_transformers) {
    for (size_t k = 0; k < sizeof LLAMA3 / sizeof *LLAMA3; k++) {
        RopeSpec s = {.dim = LLAMA3[k].dim, .base = LLAMA3[k].base, .interpolation = 1};
        s.llama3.factor = LLAMA3[k].factor;
        s.llama3.low = LLAMA3[k].low;
        s.llama3.high = LLAMA3[k].high;
        s.llama3.original = (double)LLAMA3[k].original;
        double f = rope_frequency(&s, LLAMA3[k].i),
               plain = pow(s.base, -2.0 * (double)LLAMA3[k].i / (double)s.dim);
        /* The bound: the rounding of the exponent changes the power by log(base) ulps; a few more operations
         * follow; the weight of the blend, (original / wavelength - low) / (high - low), has the error of its
         * numerator. */
        double ulps = (8 + log(s.base)) * s.llama3.high / (s.llama3.high - s.llama3.low);
        double bound = ulps * DBL_EPSILON * plain;
        if (!(fabs(f - LLAMA3[k].frequency) <= bound))
            fail_msg("entry %zu: %.17g, transformers has %.17g", k, f, LLAMA3[k].frequency);
    }
}

/* transformers, models/llama4: log1p(floor((position + 1) / floor_scale)) * attn_scale + 1 */
TEST(tables_hold_temperatures) {
    Device *d = device_cpu(1);
    const RopeSpec s = {.dim = 4, .interpolation = 1, .amplitude = 1, .temperature = {0.5, 3, 1}};
    RopeTable t = rope_table_new(d, F64, &s, 9);
    static const double factor[] = {1,
                                    1,
                                    1.3465735902799727,
                                    1.3465735902799727,
                                    1.3465735902799727,
                                    1.5493061443340548,
                                    1.5493061443340548,
                                    1.5493061443340548,
                                    1.6931471805599454};
    for (int i = 0; i < 18; i++) {
        assert_true(fabs(((const double *)t.cos.data)[i] - factor[i / 2]) <= 2 * DBL_EPSILON);
        assert_true(((const double *)t.sin.data)[i] == 0);
    }
    rope_table_free(d, &t);
    device_free(d);
}

/* Su et al.: the angle of position p and pair i is p * base^(-2i/dim). Positions are divided by the
 * interpolation factor. */
TEST(tables_hold_cosines_and_sines) {
    Device *d = device_cpu(1);
    const RopeSpec s = {.dim = 6, .base = 1000, .interpolation = 4, .amplitude = 1};
    for (int lane = 0; lane < 2; lane++) {
        RopeTable t = rope_table_new(d, lane ? F32 : F64, &s, 50);
        assert_int_equal(t.cos.dim[0], 50);
        assert_int_equal(t.cos.dim[1], 3);
        for (int p = 0; p < 50; p++)
            for (int i = 0; i < 3; i++) {
                double angle = p / 4.0 * pow(1000, -i / 3.0), c = cos(angle), sn = sin(angle);
                double ours[2];
                for (int k = 0; k < 2; k++) {
                    const void *data = (k ? t.sin : t.cos).data;
                    ours[k] =
                        lane ? (double)((const float *)data)[p * 3 + i] : ((const double *)data)[p * 3 + i];
                }
                /* the relative error of the angle is as above; the lane's storage adds a rounding */
                double bound = (8 + log(1000)) * DBL_EPSILON * fmax(1, angle) + (lane ? FLT_EPSILON / 2 : 0);
                assert_true(fabs(ours[0] - c) <= bound && fabs(ours[1] - sn) <= bound);
            }
        rope_table_free(d, &t);
    }
    device_free(d);
}
