/* Computes the global batch size as a function of consumed samples. The size is constant, or follows a step schedule
 * (megatron/core/num_microbatches_calculator.py, StepBatchsizeNumMicroBatchesCalculator), or a linear ramp-up
 * (the earlier RampupBatchsizeNumMicroBatchesCalculator):
 *   size = start + int(consumed / (ramp_samples / ((global - start) / increment))) * increment
 *   while consumed <= ramp_samples */
#include "config/config.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RAMP_STEPS_MAX = 1000000, SIZE_MAX_SAMPLES = 1 << 24 };
/* 2^53; a double represents integers exactly up to this limit */
static const double COUNT_MAX = 9007199254740992.0;

/* Parses a number that may have a suffix. For example, "2.4B" becomes 2.4e9. */
static bool scaled(const char **s, int64_t *out) {
    static const char suffixes[] = "KMBT";
    char *end;
    double value = strtod(*s, &end);
    if (end == *s || !(value >= 0 && value <= COUNT_MAX)) return false;
    const char *suffix = isalpha((unsigned char)*end) ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix) value *= pow(1000, (double)(suffix - suffixes) + 1), end++;
    *s = end;
    *out = value <= COUNT_MAX ? (int64_t)value : -1;
    return *out >= 0;
}

static int64_t step_schedule(const Config *c, BatchStep *out, int64_t capacity) {
    int64_t n = 0, before = -1, tokens_per_sample = c->seq_length > 0 ? c->seq_length : 1;
    for (const char *s = c->step_batch_size_schedule;; n++) {
        s += strspn(s, " ,");
        if (!*s) return n ? n : -1;
        BatchStep step;
        if (!scaled(&s, &step.from_samples) || *s++ != ':' || !scaled(&s, &step.size) || !strchr(" ,", *s))
            return -1;
        step.from_samples /= tokens_per_sample;
        if (step.size < 1 || step.size > SIZE_MAX_SAMPLES || step.from_samples <= before ||
            (n == 0 && step.from_samples))
            return -1;
        before = step.from_samples;
        if (n < capacity) out[n] = step;
    }
}

static int64_t ramp_up(const Config *c, BatchStep *out, int64_t capacity) {
    if (c->rampup_batch_size.count != 3) return -1;
    const int64_t *r = c->rampup_batch_size.at, start = r[0], increment = r[1], samples = r[2],
                  global = c->global_batch_size;
    if (start < 1 || increment < 1 || samples < 0 || (double)samples > COUNT_MAX || global < start) return -1;
    int64_t levels = (global - start) / increment;
    if ((global - start) % increment || levels > RAMP_STEPS_MAX) return -1;
    if (!levels || !samples) {
        if (capacity) out[0] = (BatchStep){0, global};
        return 1;
    }
    double per_level = (double)samples / (double)levels;
    int64_t n = 0;
    for (int64_t k = 0; k <= levels; k++) {
        /* find the smallest `from` for which from / per_level, rounded to double, is at least k */
        int64_t from = (int64_t)ceil((double)k * per_level);
        while (from > 0 && (int64_t)((double)(from - 1) / per_level) >= k) from--;
        while ((int64_t)((double)from / per_level) < k) from++;
        if (from > samples)
            from = samples + 1; /* after the ramp, the size is the final size, regardless of rounding */
        if (n && n <= capacity && out[n - 1].from_samples == from)
            n--; /* if two sizes begin at the same sample, only the larger size is kept */
        if (n < capacity) out[n] = (BatchStep){from, start + k * increment};
        n++;
    }
    return n;
}

int64_t config_batch_steps(const Config *c, BatchStep *out, int64_t capacity) {
    if (c->step_batch_size_schedule) return step_schedule(c, out, capacity);
    if (c->rampup_batch_size.count) return ramp_up(c, out, capacity);
    const int64_t micro = i64_or(c->micro_batch_size, 1), ranks = config_data_ranks(c),
                  smallest = micro > SIZE_MAX_SAMPLES / ranks ? SIZE_MAX_SAMPLES : micro * ranks;
    if (capacity) out[0] = (BatchStep){0, i64_or(c->global_batch_size, smallest)};
    return 1;
}

int64_t config_batch_size(const Config *c, int64_t consumed) {
    int64_t low = 0, high = c->derived.num_batch_steps;
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (c->derived.batch_steps[mid].from_samples <= consumed)
            low = mid;
        else
            high = mid;
    }
    return c->derived.batch_steps[low].size;
}
