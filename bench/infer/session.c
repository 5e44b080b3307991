#include "bench/infer/session.h"

#include <math.h>
#include <stdio.h>

#include "base/philox.h"
#include "base/statistics.h"

Sampling session_sampling(const Session *s) {
    const Config *c = s->config;
    if (!config_given(c, temperature)) return (Sampling){.temperature = 0};
    return (Sampling){.temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p};
}

EngineLimits session_limits(const Session *s, int64_t n) {
    const BenchInfer *o = s->options;
    const int64_t each = engine_pages(o->prompt + o->fresh, SESSION_PAGE),
                  tokens = n * o->prompt < ENGINE_PASS_TOKENS ? n * o->prompt : ENGINE_PASS_TOKENS;
    return (EngineLimits){
        .page = SESSION_PAGE, .pages = n * each, .requests = n, .tokens = tokens > n ? tokens : n};
}

void session_prompt(const Session *s, int64_t number, int32_t *prompt) {
    const uint64_t vocab = (uint64_t)s->run.model->plan.vocab;
    for (int64_t k = 0; k < s->options->prompt; k++)
        prompt[k] = (int32_t)(philox_u32(1, (uint64_t)number, (uint64_t)k) % vocab);
}

json_t *session_row(const Session *s, const char *what, const char *load, const char *of, int64_t n) {
    char name[120];
    snprintf(name, sizeof name, "%s/%sx%lld+%lld%s", what, load, (long long)s->options->prompt,
             (long long)s->options->fresh, session_sampling(s).temperature > 0 ? " sampled" : "");
    return json_pack("{s:s, s:s, s:I}", "name", name, "type", dtype_name(s->run.context.dtype), of,
                     (json_int_t)n);
}

void session_add_times(json_t *row, const double *ns, int64_t n) {
    json_t *samples = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(samples, json_real(ns[i] * 1e-3));
    json_object_set_new(row, "us", json_real(median_of(ns, n) * 1e-3));
    json_object_set_new(row, "samples_us", samples);
}

double session_slowest(const double *sorted, int64_t n) {
    return sorted[(int64_t)ceil(0.99 * (double)n) - 1];
}
