#include "train/run_header.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/json_text.h"
#include "base/version.h"

static json_t *given_options(const Config *c) {
    Str text = {0};
    config_json(c, CLASS_ALL, &text);
    json_t *all = json_loadb(text.s, text.len, 0, NULL), *given = json_object();
    CHECK(all, "the configuration is not valid JSON: %s", text.s);
    for (int i = 0; i < OPTIONS; i++)
        if (c->given[i] && config_field_name(i))
            json_object_set(given, config_field_name(i), json_object_get(all, config_field_name(i)));
    json_decref(all);
    str_free(&text);
    return given;
}

static json_t *layout(const Config *c) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I}", "ranks", (json_int_t)config_ranks(c), "tensor",
        (json_int_t)c->tensor_model_parallel_size, "pipeline", (json_int_t)c->pipeline_model_parallel_size,
        "context", (json_int_t)c->context_parallel_size, "expert", (json_int_t)c->expert_model_parallel_size,
        "data", (json_int_t)c->derived.data_parallel_size);
}

static json_t *data_of(const Data *data) {
    static const char *const NAMES[SPLIT_COUNT] = {"training", "validation", "test"};
    json_t *all = json_object();
    for (int i = 0; data && i < SPLIT_COUNT; i++) {
        const Dataset *split = data_split(data, (DataSplit)i);
        if (!split) continue;
        const DataFacts f = data_facts(split);
        json_object_set_new(all, NAMES[i],
                            json_pack("{s:I, s:I, s:f}", "tokens", (json_int_t)f.tokens, "samples",
                                      (json_int_t)f.samples, "epochs", f.epochs));
    }
    return all;
}

json_t *run_header(const Trainer *r, const Data *data, int64_t parameters) {
    char stamp[32], device[200] = "";
    clock_stamp(stamp);
    if (r->run.device) device_describe(r->run.device, device, sizeof device);
    json_t *header =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:o, s:o, s:o}", "kind", "run", "time", stamp,
                  "version", isotron_version(), "commit", isotron_commit(), "iteration",
                  (json_int_t)r->iteration, "parameters", (json_int_t)parameters, "device", device, "layout",
                  layout(r->run.config), "data", data_of(data), "options", given_options(r->run.config));
    CHECK(header, "the header of the log is not valid JSON");
    return header;
}

void run_header_options(const json_t *header, Str *out) {
    const char *key;
    json_t *value;
    str_puts(out, "| option | value |\n|---|---|\n");
    json_object_foreach(json_object_get(header, "options"), key, value) {
        str_printf(out, "| %s | `", key);
        json_print(out, value, 0, 0);
        str_puts(out, "` |\n");
    }
}
