#include "server/metrics.h"

static void metric(Str *out, const char *name, const char *kind, const char *help, int64_t value) {
    str_printf(out, "# HELP isotron:%s %s\n# TYPE isotron:%s %s\nisotron:%s %lld\n", name, help, name, kind,
               name, (long long)value);
}

void metrics_print(const QueueCounts *c, Str *out) {
    static const char *const NAMES[REASONS] = {[REASON_STOP] = "stop",
                                               [REASON_LENGTH] = "length",
                                               [REASON_ABORT] = "abort",
                                               [REASON_ERROR] = "error"};
    metric(out, "num_requests_running", "gauge", "Requests in the passes of the model.", c->engine.running);
    metric(out, "num_requests_waiting", "gauge", "Requests that wait for others to end.", c->waiting);
    metric(out, "kv_cache_pages", "gauge", "Pages of the KV cache.", c->engine.pages);
    metric(out, "kv_cache_free_pages", "gauge", "Pages of the KV cache that no request has.",
           c->engine.free_pages);
    metric(out, "num_passes_total", "counter", "Passes of the model.", c->engine.passes);
    metric(out, "num_preemptions_total", "counter", "Requests that released their pages to others.",
           c->engine.preemptions);
    metric(out, "spec_decode_num_draft_tokens_total", "counter", "Drafts of tokens that passes have checked.",
           c->engine.drafts);
    metric(out, "spec_decode_num_accepted_tokens_total", "counter", "Drafts that equal the chosen tokens.",
           c->engine.accepted);
    metric(out, "prompt_tokens_total", "counter", "Tokens of prompts.", c->prompt_tokens);
    metric(out, "generation_tokens_total", "counter", "Generated tokens.", c->new_tokens);
    str_puts(out,
             "# HELP isotron:request_total Texts that have ended.\n# TYPE isotron:request_total counter\n");
    for (int i = 0; i < REASONS; i++)
        str_printf(out, "isotron:request_total{finished_reason=\"%s\"} %lld\n", NAMES[i],
                   (long long)c->ended[i]);
}
