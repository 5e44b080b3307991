#include "plan/report.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/terminal.h"

/* ---- numbers ---- */

typedef struct CountText {
    char s[48];
} CountText;

/* Formats a number such as "462.30 billion". */
static CountText count_text(double n) {
    static const struct {
        double unit;
        const char *name;
    } UNITS[] = {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}};
    CountText text;
    snprintf(text.s, sizeof text.s, "%.0f", n);
    for (size_t i = sizeof UNITS / sizeof *UNITS; i--;)
        if (n >= UNITS[i].unit) snprintf(text.s, sizeof text.s, "%.2f %s", n / UNITS[i].unit, UNITS[i].name);
    return text;
}

static CountText percent_text(double share) {
    CountText text = {"unknown"};
    if (!isnan(share)) snprintf(text.s, sizeof text.s, "%.1f %%", 100 * share);
    return text;
}

static int64_t most_held(const RunPlan *p) {
    int64_t most = 0;
    for (int i = 0; i < p->pipeline.ranks; i++)
        if (p->stages[i].memory.held > most) most = p->stages[i].memory.held;
    return most;
}

static int64_t layers_of(const RunPlan *p, int stage) {
    int64_t n = 0;
    for (int chunk = 0; chunk < p->pipeline.chunks; chunk++)
        n += p->pipeline.stages[chunk * p->pipeline.ranks + stage].layers;
    return n;
}

/* ---- text ---- */

static void print_model(const RunPlan *p, Str *out) {
    const Config *c = p->config;
    const double tokens = (double)p->config->derived.global_batch_size * (double)c->seq_length;
    str_printf(out, "model: %s, %s, hidden size %lld, vocabulary %lld\n", ModelFamily_spellings[c->model],
               config_layers_text(c).s, (long long)c->hidden_size,
               (long long)p->config->derived.padded_vocab_size);
    str_printf(out, "parameters: %s (%lld)", count_text((double)p->parameters.all).s,
               (long long)p->parameters.all);
    if (p->parameters.experts)
        str_printf(out, ", %s active per token", count_text((double)p->parameters.active).s);
    str_printf(out, ", at most %s on any rank\n", count_text((double)most_held(p)).s);
    str_printf(out, "model FLOPs: %.4g per token, %.4g per step\n", p->flops / (double)c->seq_length,
               p->flops / (double)c->seq_length * tokens);
}

static void print_layout(const RunPlan *p, Str *out) {
    const int *size = p->layout.mesh.size;
    str_printf(out, "device: %s\n",
               p->config->device == ON_CPU        ? "CPU"
               : !config_given(p->config, device) ? "GPU, unless --device cpu is given"
                                                  : "GPU");
    str_printf(out, "layout: %s, tensor %d, context %d, pipeline %d, data %d",
               amount(p->layout.mesh.world, "rank").s, size[AXIS_TP], size[AXIS_CP], size[AXIS_PP],
               size[AXIS_DP]);
    if (p->parameters.experts)
        str_printf(out, ", expert %d, expert tensor %d, expert data %d", size[AXIS_EP], size[AXIS_ETP],
                   size[AXIS_EDP]);
    str_printf(out, ", ZeRO stage %d%s\n", p->layout.data.stage,
               p->layout.sequence_parallel ? ", sequence parallel" : "");
    str_printf(out, "batch: micro %lld, global %lld, %s per rank and step\n",
               (long long)p->config->derived.micro_batch_size,
               (long long)p->config->derived.global_batch_size, amount(p->microbatches, "microbatch").s);
    if (p->pipeline.ranks == 1) return;
    str_printf(out, "pipeline: %s, %s per rank, bubble %s of a step\n",
               PipelineSchedule_spellings[p->spec.kind], amount(p->pipeline.chunks, "stage").s,
               percent_text(p->bubble).s);
}

/* Prints a column for each part of memory that any rank uses. All numbers use the unit of the largest one. */
static void print_memory(const RunPlan *p, int width, Str *out) {
    const BytesText most = bytes_text((double)plan_bytes(p));
    const char *unit = strchr(most.s, ' ') + 1;
    double scale = 1;
    while (strcmp(strchr(bytes_text(scale).s, ' ') + 1, unit)) scale *= 1024;
    bool shown[MEMORY_PART_COUNT] = {false};
    for (int i = 0; i < p->pipeline.ranks; i++)
        for (int part = 0; part < MEMORY_PART_COUNT; part++)
            shown[part] |= p->stages[i].memory.part[part] > 0;
    Str cells = {0};
    str_puts(&cells, "rank\tlayers\tin flight");
    for (int part = 0; part < MEMORY_PART_COUNT; part++)
        if (shown[part]) str_printf(&cells, "\t%s", MEMORY_TITLES[part]);
    str_puts(&cells, "\ttotal\n");
    for (int i = 0; i < p->pipeline.ranks; i++) {
        const MemoryPlan *m = &p->stages[i].memory;
        str_printf(&cells, "%d\t%lld\t%lld", p->stages[i].rank, (long long)layers_of(p, i),
                   (long long)m->in_flight);
        for (int part = 0; part < MEMORY_PART_COUNT; part++)
            if (shown[part]) str_printf(&cells, "\t%.2f", (double)m->part[part] / scale);
        str_printf(&cells, "\t%.2f\n", (double)memory_plan_total(m) / scale);
    }
    str_printf(out, "memory in %s of the first rank of each pipeline stage:\n", unit);
    terminal_table(cells.s, width, out);
    str_free(&cells);
    const StagePlan *largest = &p->stages[p->largest];
    str_printf(out, "memory of rank %d: ", largest->rank);
    memory_plan_describe(&largest->memory, out);
    str_puts(out, "\n");
}

void plan_print(const RunPlan *p, size_t available, int width, Str *out) {
    print_model(p, out);
    print_layout(p, out);
    print_memory(p, width, out);
    if (!available) return;
    const double need = (double)plan_bytes(p), have = (double)available;
    if (need <= have)
        str_printf(out, "fits: %s of %s are left\n", bytes_text(have - need).s, bytes_text(have).s);
    else
        str_printf(out, "does not fit: %s more than %s are needed\n", bytes_text(need - have).s,
                   bytes_text(have).s);
}

/* Appends the names of the ops whose times have this source. */
static void print_ops(const StepTime *t, RateSource source, Str *out) {
    const char *last = "";
    for (const StepWork *w = t->work; w < t->work + t->n; w++) {
        if (w->source != source || !strcmp(w->work.name, last)) continue;
        str_printf(out, "%s%s", *last ? ", " : " (", w->work.name);
        last = w->work.name;
    }
    if (*last) str_puts(out, ")");
}

static void print_parts(const StepTime *t, Str *out) {
    const SimParts *p = &t->parts;
    char axes[32];
    str_printf(out, "time of a rank: ops %s, slowed by communication %s", percent_text(p->ops / t->ns).s,
               percent_text(p->load / t->ns).s);
    for (unsigned i = 0; i < SIM_AXES; i++)
        if (p->exposed[i] >= 0.0005 * t->ns)
            str_printf(out, ", exposed %s %s", mesh_axes_text(i, axes),
                       percent_text(p->exposed[i] / t->ns).s);
    str_printf(out, ", bubble %s, host %s\n", percent_text(p->bubble / t->ns).s,
               percent_text(p->host / t->ns).s);
    double links = 0;
    for (int i = 0; i < LINK_SOURCES; i++) links += t->link_ns[i];
    str_printf(out,
               "operations between ranks: %s of their time is from measured sizes and groups, %s from other "
               "sizes or groups, %s from the description of hosts",
               percent_text(t->link_ns[LINK_MEASURED] / links).s,
               percent_text(t->link_ns[LINK_BEYOND] / links).s,
               percent_text(t->link_ns[LINK_DESCRIBED] / links).s);
    if (t->blocks)
        str_printf(out, "; assumed to use %d of %d multiprocessors", t->blocks, TRACE_MULTIPROCESSORS);
    str_puts(out, "\n");
}

void step_time_print(const StepTime *t, Str *out) {
    const char *separator = "";
    str_printf(out, "predicted step: %.4g ms, %.4g tokens/s", t->ns * 1e-6, t->tokens_per_second);
    if (t->ranks > 1) str_printf(out, " (%.4g per rank)", t->tokens_per_second / t->ranks);
    str_printf(out, ", MFU %s%s\n", percent_text(t->mfu).s,
               t->host_ns > t->device_ns ? "; the host limits the step: use CUDA graphs" : "");
    if (t->ranks > 1) print_parts(t, out);
    str_puts(out, "time by op family: ");
    for (int i = 0; i < OP_FAMILIES; i++) {
        if (t->family_ns[i] <= 0) continue;
        str_printf(out, "%s%s %s", separator, OP_FAMILY_NAMES[i],
                   percent_text(t->family_ns[i] / t->device_ns).s);
        separator = ", ";
    }
    str_printf(out,
               "\nrates of %s, measured on %s: %s of the time is between measured sizes, %s outside of them",
               t->rates->device, t->rates->date, percent_text(t->source_ns[RATE_MEASURED] / t->device_ns).s,
               percent_text(t->source_ns[RATE_BEYOND] / t->device_ns).s);
    print_ops(t, RATE_BEYOND, out);
    str_printf(out, ", %s from rooflines", percent_text(t->source_ns[RATE_ROOF] / t->device_ns).s);
    print_ops(t, RATE_ROOF, out);
    str_puts(out, "\n");
}

static void print_searched(const Search *s, Str *out) {
    str_printf(out,
               "searched %s: tensor parallelism to %lld ranks, context to %d, pipeline, virtual stages, %s"
               "data, ZeRO, recomputation, microbatches to %s%s\n",
               amount(s->tries, "layout").s, (long long)s->node, SEARCH_CONTEXT,
               s->rated ? "sequence, expert, expert tensor, " : "expert, ", amount(s->micro, "sample").s,
               s->stopped ? "; stopped before all were tried" : "");
    if (!s->rated) return;
    str_printf(out,
               "simulated %s that fit; %lld more cannot be faster than those listed, or take at least %g "
               "times as long as the first",
               amount(s->timed, "layout").s, (long long)s->slower, SEARCH_SLOWEST);
    if (s->left)
        str_printf(out, "; %lld were not tried, because the search ends after %d events", (long long)s->left,
                   SEARCH_EVENTS);
    if (s->unrated) str_printf(out, "; %s could not be timed", amount(s->unrated, "layout").s);
    str_puts(out, "\n");
}

/* Appends the columns of predicted times. */
static void print_rated(const FoundLayout *f, const RunTerms *terms, Str *cells) {
    const RunCost cost = run_cost(terms, f->ranks, f->ns, f->tokens_per_second);
    str_printf(cells, "\t%s\t%.4g\t%s", percent_text(f->exposed).s, f->tokens_per_second,
               percent_text(f->mfu).s);
    if (f64_is_set(cost.days)) str_printf(cells, "\t%.4g", cost.days);
    if (f64_is_set(cost.cost)) str_printf(cells, "\t%.4g", cost.cost);
}

/* With rates, the bubble is the simulated one. */
static void print_found(const Search *s, const RunTerms *terms, int width, Str *out) {
    Str cells = {0};
    str_printf(&cells,
               "ranks\ttensor\t%scontext\tpipeline\tvirtual\texpert\t%sdata\tZeRO\trecompute\tmicro\tmemory"
               "\tbubble%s%s%s\n",
               s->rated ? "sequence\t" : "", s->rated ? "expert tensor\t" : "",
               s->rated ? "\texposed\ttokens/s\tMFU" : "",
               s->rated && f64_is_set(terms->tokens) ? "\tdays" : "",
               s->rated && f64_is_set(terms->tokens * terms->price) ? "\tcost" : "");
    for (int i = 0; i < s->n; i++) {
        const FoundLayout *f = &s->found[i];
        str_printf(&cells, "%lld\t%lld\t", (long long)f->ranks, (long long)f->tensor);
        if (s->rated) str_puts(&cells, f->sequence ? "yes\t" : "no\t");
        str_printf(&cells, "%lld\t%lld\t%lld\t%lld\t", (long long)f->context, (long long)f->pipeline,
                   (long long)f->chunks, (long long)f->expert);
        if (s->rated)
            str_printf(&cells, "%lld\t", (long long)(f->expert_tensor ? f->expert_tensor : f->tensor));
        str_printf(&cells, "%lld\t%d\t%s\t%lld\t%s\t%s", (long long)f->data, f->zero,
                   RecomputeGranularity_spellings[f->recompute], (long long)f->micro,
                   bytes_text((double)f->bytes).s, percent_text(s->rated ? f->idle : f->bubble).s);
        if (s->rated) print_rated(f, terms, &cells);
        str_puts(&cells, "\n");
    }
    terminal_table(cells.s, width, out);
    str_free(&cells);
    str_printf(out, "options of the first layout: %s\n", s->found[0].words);
}

void search_print(const Search *s, const RunTerms *terms, int64_t ranks, size_t available, int width,
                  Str *out) {
    const BytesText memory = bytes_text((double)available);
    const bool exactly = i64_is_set(ranks);
    print_searched(s, out);
    if (!s->n && exactly)
        str_printf(out, "no layout of %s fits into %s per rank: remove --ranks to search more\n",
                   amount(ranks, "rank").s, memory.s);
    else if (!s->n)
        str_printf(out,
                   "no layout fits into %s per rank: lower --micro-batch-size, or choose a smaller model\n",
                   memory.s);
    if (!s->n) return;
    if (exactly)
        str_printf(out, "layouts of %s that fit into %s per rank:\n", amount(ranks, "rank").s, memory.s);
    else
        str_printf(out, "the layouts of the fewest ranks that fit into %s per rank:\n", memory.s);
    print_found(s, terms, width, out);
}

/* ---- JSON ---- */

static json_t *memory_json(const RunPlan *p, int stage) {
    const StagePlan *s = &p->stages[stage];
    json_t *parts = json_object(), *most = json_object();
    for (int part = 0; part < MEMORY_PART_COUNT; part++) {
        json_object_set_new(parts, MEMORY_TITLES[part], json_integer((json_int_t)s->memory.part[part]));
        if (s->memory.most[part] > s->memory.part[part])
            json_object_set_new(most, MEMORY_TITLES[part], json_integer((json_int_t)s->memory.most[part]));
    }
    return json_pack("{s:i, s:I, s:I, s:i, s:o, s:o, s:I}", "rank", s->rank, "layers",
                     (json_int_t)layers_of(p, stage), "in_flight", (json_int_t)s->memory.in_flight,
                     "communicators", s->memory.communicators, "bytes", parts, "most", most, "total",
                     (json_int_t)memory_plan_total(&s->memory));
}

static json_t *plan_json(const RunPlan *p) {
    const int *size = p->layout.mesh.size;
    json_t *ranks = json_array();
    for (int i = 0; i < p->pipeline.ranks; i++) json_array_append_new(ranks, memory_json(p, i));
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:f, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}, s:{s:I, s:I, s:I}, s:o, s:i, "
        "s:o}",
        "device", DeviceOption_spellings[p->config->device], "parameters", (json_int_t)p->parameters.all,
        "active_parameters", (json_int_t)p->parameters.active, "rank_parameters", (json_int_t)most_held(p),
        "flops_per_sample", p->flops, "layout", "ranks", p->layout.mesh.world, "tensor", size[AXIS_TP],
        "context", size[AXIS_CP], "pipeline", size[AXIS_PP], "data", size[AXIS_DP], "expert", size[AXIS_EP],
        "expert_tensor", size[AXIS_ETP], "zero", p->layout.data.stage, "batch", "micro",
        (json_int_t)p->config->derived.micro_batch_size, "global",
        (json_int_t)p->config->derived.global_batch_size, "microbatches", (json_int_t)p->microbatches,
        "bubble", json_finite(p->bubble), "largest", p->stages[p->largest].rank, "memory", ranks);
}

static const char *const SOURCES[RATE_SOURCES] = {"measured", "beyond", "roofline", "none"};

/* Returns the parts of the step's time on several ranks. */
static json_t *parts_json(const SimParts *p) {
    char axes[32];
    json_t *exposed = json_object();
    for (unsigned i = 0; i < SIM_AXES; i++)
        if (p->exposed[i] > 0)
            json_object_set_new(exposed, mesh_axes_text(i, axes), json_real(p->exposed[i] * 1e-6));
    return json_pack("{s:f, s:f, s:o, s:f, s:f}", "ops", p->ops * 1e-6, "slowed_ops", p->load * 1e-6,
                     "exposed", exposed, "bubble", p->bubble * 1e-6, "host", p->host * 1e-6);
}

static json_t *time_json(const StepTime *t) {
    json_t *families = json_object(), *calls = json_array();
    for (int i = 0; i < OP_FAMILIES; i++)
        json_object_set_new(families, OP_FAMILY_NAMES[i], json_real(t->family_ns[i] * 1e-6));
    for (const StepWork *w = t->work; w < t->work + t->n; w++) {
        json_t *size = json_array();
        for (int i = 0; i < w->work.sizes; i++) json_array_append_new(size, json_real(w->work.size[i]));
        json_array_append_new(calls, json_pack("{s:s, s:o, s:I, s:f, s:s}", "op", w->work.name, "size", size,
                                               "calls", (json_int_t)w->calls, "us", w->work.ns * 1e-3, "from",
                                               SOURCES[w->source]));
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:s, s:o, s:o, s:o}", "step_ms", t->ns * 1e-6, "device_ms",
                     t->device_ns * 1e-6, "host_ms", t->host_ns * 1e-6, "tokens_per_second",
                     t->tokens_per_second, "mfu", json_finite(t->mfu), "rates_device", t->rates->device,
                     "family_ms", families, "calls", calls, "parts_ms", parts_json(&t->parts));
}

static json_t *run_cost_json(const RunCost *c) {
    return json_pack("{s:o, s:I, s:o, s:I, s:o, s:o, s:o, s:o}", "failure_hours",
                     json_finite(c->failure_hours), "best_interval", (json_int_t)c->best_interval,
                     "best_goodput", json_finite(c->best_goodput), "interval", (json_int_t)c->interval,
                     "goodput", json_finite(c->goodput), "days", json_finite(c->days), "cost",
                     json_finite(c->cost), "cost_per_million_tokens", json_finite(c->per_million_tokens));
}

static json_t *search_json(const Search *s) {
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++) {
        const FoundLayout *f = &s->found[i];
        json_t *layout = json_pack("{s:I, s:s, s:I, s:o}", "ranks", (json_int_t)f->ranks, "options", f->words,
                                   "bytes", (json_int_t)f->bytes, "bubble", json_finite(f->bubble));
        if (s->rated)
            json_object_update_new(layout,
                                   json_pack("{s:f, s:f, s:o, s:f, s:f}", "step_ms", f->ns * 1e-6,
                                             "tokens_per_second", f->tokens_per_second, "mfu",
                                             json_finite(f->mfu), "exposed", f->exposed, "idle", f->idle));
        json_array_append_new(list, layout);
    }
    return list;
}

Err plan_write_json(const RunPlan *p, const StepTime *t, const RunCost *cost, const Search *s,
                    size_t available, const char *path) {
    json_t *all = json_pack("{s:o}", "plan", plan_json(p));
    if (t)
        json_object_set_new(all, "time", time_json(t)), json_object_set_new(all, "run", run_cost_json(cost));
    if (s) json_object_set_new(all, "search", search_json(s));
    if (s)
        json_object_set_new(all, "searched",
                            json_pack("{s:I, s:b, s:I, s:I, s:I, s:I}", "layouts", (json_int_t)s->tries,
                                      "all", !s->stopped, "timed", (json_int_t)s->timed, "slower",
                                      (json_int_t)s->slower, "unrated", (json_int_t)s->unrated, "left",
                                      (json_int_t)s->left));
    if (available) json_object_set_new(all, "device_bytes", json_integer((json_int_t)available));
    char *text = json_dumps(all, JSON_INDENT(1));
    json_decref(all);
    Err e = file_write_atomic(path, text, strlen(text));
    if (e.code) e.code = ERR_INFRA; /* the plan is valid even if its file cannot be written */
    free(text);
    return e;
}
