/* Tests that each signature is distinguished from the others, and that noise far below a fault does not hide
 * it. */
#include <math.h>
#include <string.h>

#include "parity/signature.h"
#include "unit/cmocka_all.h"

enum { N = 12, RANKS = 2 };

static double right(int i) { return sin(1.0 + i * i); }

static void expect(const double *x, const double *summands, int rank, const char *words) {
    double y[N];
    char text[160];
    for (int i = 0; i < N; i++) y[i] = right(i);
    signature_of((Suspect){.x = x, .y = y, .n = N, .summands = summands, .ranks = RANKS, .rank = rank}, text,
                 sizeof text);
    if (!strstr(text, words)) fail_msg("'%s' is not '%s'", text, words);
}

TEST(a_factor_is_told_with_its_value) {
    double x[N];
    for (int i = 0; i < N; i++) x[i] = 2 * right(i) * (1 + 1e-12 * i);
    expect(x, NULL, 0, "scaled by 2");
    for (int i = 0; i < N; i++) x[i] = -0.5 * right(i);
    expect(x, NULL, 0, "scaled by -0.5");
}

TEST(zeros_are_told_from_a_tail_of_zeros) {
    double x[N] = {0};
    expect(x, NULL, 0, "all zero");
    for (int i = 0; i < N - 3; i++) x[i] = right(i);
    expect(x, NULL, 0, "zero from element 9 of 12 onward");
}

TEST(other_orders_are_told) {
    double x[N];
    for (int i = 0; i < N; i++) x[i] = right((i + 5) % N);
    expect(x, NULL, 0, "permuted");
    x[3] += 0.5;
    expect(x, NULL, 0, "differs by");
}

TEST(missing_and_doubled_summands_are_told) {
    double parts[RANKS * N], x[N];
    for (int i = 0; i < N; i++) parts[i] = cos(i), parts[N + i] = right(i) - parts[i];
    expect(parts + N, parts, 1, "only its own summand");
    expect(parts + N, parts, 0, "only the summand of rank 1");
    for (int i = 0; i < N; i++) x[i] = right(i) + parts[i];
    expect(x, parts, 0, "summand of rank 0 is counted twice");
}

TEST(what_is_not_finite_is_told_first) {
    double x[N];
    for (int i = 0; i < N; i++) x[i] = right(i);
    x[4] = NAN;
    expect(x, NULL, 0, "not finite from element 4 on");
}
