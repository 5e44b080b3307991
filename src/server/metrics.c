#include "server/metrics.h"

static void family(Str *out, const char *name, const char *kind, const char *help) {
    str_printf(out, "# HELP isotron:%s %s\n# TYPE isotron:%s %s\n", name, help, name, kind);
}

static void metric(Str *out, const char *name, const char *kind, const char *help, double value) {
    family(out, name, kind, help);
    str_printf(out, "isotron:%s %.17g\n", name, value);
}

/* ---- histograms ---- */

/* The upper bound of each bucket except the last, in seconds. */
static const double LIMITS[LATENCY_BUCKETS - 1] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                   0.5,   1,      2.5,   5,    10,    25,   50,  100};

void latency_add(Latencies *l, Latency which, int64_t ns) {
    int bucket = 0;
    while (bucket < LATENCY_BUCKETS - 1 && (double)ns > LIMITS[bucket] * 1e9) bucket++;
    l->at[which].buckets[bucket]++;
    l->at[which].ns += ns;
}

static void histogram(Str *out, const char *name, const char *help, Latencies *l, Latency which) {
    long long count = 0;
    const double sum = (double)l->at[which].ns / 1e9;
    family(out, name, "histogram", help);
    for (int i = 0; i < LATENCY_BUCKETS; i++) {
        count += l->at[which].buckets[i];
        str_printf(out, "isotron:%s_bucket{le=\"", name);
        str_printf(out, i < LATENCY_BUCKETS - 1 ? "%g" : "+Inf", i < LATENCY_BUCKETS - 1 ? LIMITS[i] : 0);
        str_printf(out, "\"} %lld\n", count);
    }
    str_printf(out, "isotron:%s_sum %.17g\nisotron:%s_count %lld\n", name, sum, name, count);
}

/* ---- all metrics ---- */

static void print_ends(const QueueCounts *c, Str *out) {
    static const char *const NAMES[REASONS] = {[REASON_STOP] = "stop",
                                               [REASON_LENGTH] = "length",
                                               [REASON_ABORT] = "abort",
                                               [REASON_ERROR] = "error"};
    family(out, "request_success_total", "counter", "Number of texts that have ended.");
    for (int i = 0; i < REASONS; i++)
        str_printf(out, "isotron:request_success_total{finished_reason=\"%s\"} %lld\n", NAMES[i],
                   (long long)c->ended[i]);
    metric(out, "corrupted_requests_total", "counter",
           "Number of texts that ended because logits were not finite.", (double)c->ended[REASON_ERROR]);
}

void metrics_print(const QueueCounts *c, Latencies *l, Str *out) {
    const struct {
        const char *name, *kind, *help;
        int64_t value;
    } counts[] = {
        {"num_requests_running", "gauge", "Number of requests that are running.", c->engine.running},
        {"num_requests_waiting", "gauge", "Number of requests that wait until others end.", c->waiting},
        {"kv_cache_pages", "gauge", "Number of pages in the KV cache.", c->engine.pages},
        {"kv_cache_free_pages", "gauge", "Number of KV-cache pages that no request uses.",
         c->engine.free_pages},
        {"num_passes_total", "counter", "Number of model passes.", c->engine.passes},
        {"num_preemptions_total", "counter", "Number of times that a request released its pages to others.",
         c->engine.preemptions},
        {"prefix_cache_queries_total", "counter",
         "Number of prompt tokens that were looked up in shared pages.", c->prompt_tokens},
        {"prefix_cache_hits_total", "counter", "Number of prompt tokens that were in shared pages.",
         c->engine.shared},
        {"spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens that passes have checked.",
         c->engine.drafts},
        {"spec_decode_num_accepted_tokens_total", "counter",
         "Number of draft tokens that equal the chosen tokens.", c->engine.accepted},
        {"prompt_tokens_total", "counter", "Number of prompt tokens.", c->prompt_tokens},
        {"generation_tokens_total", "counter", "Generated tokens.", c->new_tokens},
        {"weight_version", "gauge", "Number of times that new weights were loaded.", c->engine.weights},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        metric(out, counts[i].name, counts[i].kind, counts[i].help, (double)counts[i].value);
    metric(out, "kv_cache_usage_perc", "gauge", "Fraction of the KV cache that requests use, from 0 to 1.",
           c->engine.pages ? 1 - (double)c->engine.free_pages / (double)c->engine.pages : 0);
    print_ends(c, out);
    histogram(out, "request_queue_time_seconds", "Time from a request to its first model pass.", l,
              LATENCY_QUEUE);
    histogram(out, "time_to_first_token_seconds", "Time from a request to its first token.", l,
              LATENCY_FIRST);
    histogram(out, "inter_token_latency_seconds", "Time from a token to the next one.", l, LATENCY_NEXT);
    histogram(out, "e2e_request_latency_seconds", "Time from a request to the end of its text.", l,
              LATENCY_REQUEST);
}
