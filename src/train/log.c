#include "train/log.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "train/events.h"
#include "train/run_header.h"

/* The names of router losses that Megatron-LM prints (core/transformer/moe/moe_logging.py). */
const char *const ROUTER_LOSS_NAMES[ROUTER_LOSSES] = {
    [ROUTER_LOSS_AUX] = "load_balancing_loss",
    [ROUTER_LOSS_SEQ_AUX] = "seq_load_balancing_loss",
    [ROUTER_LOSS_GLOBAL_AUX] = "global_load_balancing_loss",
    [ROUTER_LOSS_Z] = "z_loss",
};

struct TrainLog {
    Events *events; /* NULL without --tensorboard-dir */
    int jsonl;      /* -1 without --log-jsonl */
    /* Sums over the steps since the last printed line. */
    double loss[MODEL_LOSSES], router_loss[ROUTER_LOSSES];
    int64_t losses, steps, skipped, nan, ns, samples;

    int64_t all_steps, all_skipped; /* number of steps and skipped steps since the process started */
    LossSum accepted[MODEL_LOSSES]; /* sums of counts, such as accepted MTP predictions */

    bool printed;        /* whether the first step of the process has been printed */
    bool brief;          /* whether lines have the short format instead of Megatron-LM's format */
    bool live;           /* whether standard error is a terminal that shows a status line */
    bool status_shown;   /* whether the status line is visible */
    int64_t status_time; /* the value of clock_ns when the status line was written */
    Str text;
};

/* Rejects a file that is not a log, because the user may have given a wrong name. */
static Err check_is_log(int fd, const char *path) {
    char head[2] = "{";
    if (pread(fd, head, sizeof head, 0) < 0) return file_failed("read", path);
    if (head[0] == '{' && head[1] != '\n') return ERR_OK;
    return err_user(
        "'%s' is not a log: its first line is not a JSON object; choose another file for --log-jsonl", path);
}

static bool has_steps(const char *path) {
    static const char STEP[] = "{\"iteration\"";
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    while (f && !found && getline(&line, &capacity, f) > 0) found = !strncmp(line, STEP, sizeof STEP - 1);
    free(line);
    if (f) fclose(f);
    return found;
}

/* Sets *torn to true if the last line has no newline. A killed run can leave such a line. */
static Err ends_torn(int fd, const char *path, bool *torn) {
    char last = '\n';
    const off_t size = lseek(fd, 0, SEEK_END);
    if (size > 0 && pread(fd, &last, 1, size - 1) != 1) return file_failed("read", path);
    *torn = last != '\n';
    return ERR_OK;
}

static Err open_jsonl(TrainLog *log, const Trainer *r, const json_t *header) {
    const char *path = r->run.config->log_jsonl;
    bool torn = false;
    log->jsonl = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->jsonl < 0)
        return err_user("cannot open '%s' for --log-jsonl; check that its folder exists", path);
    if (!file_is_stream(path)) {
        ERR_RETURN(check_is_log(log->jsonl, path));
        ERR_RETURN(ends_torn(log->jsonl, path, &torn));
        if (!r->iteration && has_steps(path))
            printf("  note: %s has steps of an earlier run; this run starts at step 0 and appends to "
                   "the file. To replace the file, remove it first\n",
                   path);
    }
    str_clear(&log->text);
    str_puts(&log->text, torn ? "\n" : "");
    json_print(&log->text, header, 0, 0);
    str_puts(&log->text, "\n");
    return file_write_all(log->jsonl, path, log->text.s, log->text.len);
}

static Err open_events(TrainLog *log, const Trainer *r, const json_t *header) {
    ERR_RETURN(events_open(r->run.config->tensorboard_dir, &log->events));
    str_clear(&log->text);
    run_header_options(header, &log->text);
    return events_text(log->events, "options", r->iteration, log->text.s);
}

Err train_log_open(const Trainer *r, const Data *data, int64_t parameters, TrainLog **out) {
    const Config *c = r->run.config;
    TrainLog *log = mem_zero(1, sizeof *log);
    json_t *header = run_header(r, data, parameters);
    log->jsonl = -1;
    log->brief = c->log_format == LOG_SHORT || (c->log_format == LOG_AUTO && isatty(STDOUT_FILENO));
    log->live = terminal_is_live(stderr);
    Err e = c->tensorboard_dir ? open_events(log, r, header) : ERR_OK;
    if (!e.code && c->log_jsonl) e = open_jsonl(log, r, header);
    json_decref(header);
    if (e.code) train_log_close(log);
    *out = e.code ? NULL : log;
    return e;
}

Err train_log_check(const Config *c) {
    const char *path = c->log_jsonl;
    if (c->tensorboard_dir) ERR_RETURN(file_check_folder(c->tensorboard_dir));
    if (!path) return ERR_OK;
    ERR_RETURN(file_check_target(path));
    if (!file_exists(path) || file_is_stream(path)) return ERR_OK;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return file_failed("open", path);
    const Err e = check_is_log(fd, path);
    close(fd);
    return e;
}

void train_log_close(TrainLog *log) {
    if (!log) return;
    train_log_hide_status(log);
    events_close(log->events);
    if (log->jsonl >= 0) close(log->jsonl);
    str_free(&log->text);
    free(log);
}

/* Measurements for one step or interval, in the units in which they are printed. FLOPs are per rank. */
typedef struct Rates {
    double seconds, tokens_per_second, tflops;
} Rates;

static Rates rates(const Trainer *r, int64_t samples, int64_t ns) {
    double seconds = 1e-9 * (double)ns;
    return (Rates){
        .seconds = seconds,
        .tokens_per_second = (double)(samples * r->run.config->seq_length) / seconds,
        .tflops = trainer_flops(r, samples) / (double)config_ranks(r->run.config) / seconds * 1e-12,
    };
}

static int64_t seconds_left(const TrainLog *log, const Trainer *r) {
    return (r->run.config->derived.train_iters - r->iteration) * log->ns / log->steps / 1000000000;
}

/* Formats a duration like "1:02:03". */
static const char *clock_text(int64_t seconds, char out[32]) {
    snprintf(out, 32, "%lld:%02lld:%02lld", (long long)(seconds / 3600), (long long)(seconds / 60 % 60),
             (long long)(seconds % 60));
    return out;
}

/* ---- lines ---- */

static int n_losses(const Trainer *r) { return r->run.model->plan.n_losses; }

/* Returns the number of losses and counts that a training step computes. */
static int n_told(const Trainer *r) {
    const ModelPlan *p = &r->run.model->plan;
    return p->n_counts && p->loss[p->n_losses].auxiliary ? model_sums(p) : p->n_losses;
}

/* Returns the mean of a loss or, as in Megatron-LM, the percentage of a count. */
static double told(const Trainer *r, const LossSum *sum, int i) {
    return (i < n_losses(r) ? 1 : 100) * trainer_mean(sum[i]);
}

/* Returns the number of losses that an evaluation computes. */
static int n_main(const Trainer *r) { return r->run.model->plan.n_main; }

static const char *loss_name(const Trainer *r, int i) { return r->run.model->plan.loss[i].name; }

static double perplexity(double loss) { return exp(fmin(20, loss)); }

static void print_megatron_line(const TrainLog *log, const Trainer *r, const StepReport *s) {
    const Config *c = r->run.config;
    Rates rate = rates(r, log->samples, log->ns);
    char text[32];
    clock_stamp(text);
    printf(" [%s] iteration %8lld/%8lld | consumed samples: %12lld |", text, (long long)r->iteration,
           (long long)r->run.config->derived.train_iters, (long long)r->consumed_samples);
    printf(" elapsed time per iteration (ms): %.1f |", 1e3 * rate.seconds / (double)log->steps);
    if (c->log_throughput && c->device == ON_CPU)
        printf(" throughput per rank (TFLOP/s): %.3g |", rate.tflops);
    if (c->log_throughput && c->device != ON_CPU)
        printf(" throughput per GPU (TFLOP/s/GPU): %.1f |", rate.tflops);
    printf(" learning rate: %.6E | global batch size: %5lld |", s->lr, (long long)s->samples);
    for (int i = 0; log->losses && i < n_told(r); i++)
        printf(" %s: %.6E |", loss_name(r, i), log->loss[i] / (double)log->losses);
    for (int i = 0; i < ROUTER_LOSSES; i++)
        if (s->router_losses & 1u << i)
            printf(" %s: %.6E |", ROUTER_LOSS_NAMES[i], log->router_loss[i] / (double)log->steps);
    printf(" loss scale: %.1f |", s->loss_scale);
    if (!s->optim.found_inf) printf(" grad norm: %.3f |", s->optim.grad_norm);
    if (c->log_num_zeros_in_grad) printf(" num zeros: %.0f |", s->optim.num_zeros);
    if (c->log_params_norm) printf(" params norm: %.3f |", s->optim.params_norm);
    if (config_measures_scores(c)) printf(" max attention logit: %.3f |", s->max_score);
    printf(" number of skipped iterations: %3lld | number of nan iterations: %3lld |",
           (long long)log->skipped, (long long)log->nan);
    printf(" tokens per second: %.0f | time left: %s |\n", rate.tokens_per_second,
           clock_text(seconds_left(log, r), text));
}

/* Formats the means over the steps since the last line. Omits the loss if all steps were skipped. */
static void short_line(const TrainLog *log, const Trainer *r, Str *out) {
    char left[32];
    const Rates rate = rates(r, log->samples, log->ns);
    str_clear(out);
    str_printf(out, "step %lld/%lld", (long long)r->iteration, (long long)r->run.config->derived.train_iters);
    for (int i = 0; log->losses && i < n_told(r); i++)
        str_printf(out, " | %s %.4f", i ? loss_name(r, i) : "loss", log->loss[i] / (double)log->losses);
    str_printf(out, " | %.0f tokens/s | %s left", rate.tokens_per_second,
               clock_text(seconds_left(log, r), left));
}

static void print_line(TrainLog *log, const Trainer *r, const StepReport *s) {
    train_log_hide_status(log);
    if (!log->brief) {
        print_megatron_line(log, r, s);
        return;
    }
    short_line(log, r, &log->text);
    if (!s->optim.found_inf) str_printf(&log->text, " | grad norm %.3f", s->optim.grad_norm);
    str_printf(&log->text, " | lr %.3g", s->lr);
    if (log->skipped || log->nan)
        str_printf(&log->text, " | %lld skipped, %lld nan", (long long)log->skipped, (long long)log->nan);
    str_puts(&log->text, "\n");
    terminal_print(stdout, log->text.s);
}

static void show_status(TrainLog *log, const Trainer *r) {
    enum { INTERVAL_NS = 100000000 };
    const int64_t now = clock_ns();
    if (!log->live || (log->status_shown && now - log->status_time < INTERVAL_NS)) return;
    short_line(log, r, &log->text);
    terminal_show(stderr, log->text.s);
    log->status_shown = true;
    log->status_time = now;
}

void train_log_hide_status(TrainLog *log) {
    if (!log || !log->status_shown) return;
    terminal_hide(stderr);
    log->status_shown = false;
}

/* ---- records ---- */

static void put_number(json_t *record, const char *name, double value) {
    json_object_set_new(record, name, json_finite(value));
}

/* For example, the field for the loss "lm loss" is named "lm_loss". */
static void put_loss(json_t *record, const Trainer *r, int i, double value) {
    char name[32];
    snprintf(name, sizeof name, "%s", loss_name(r, i));
    for (char *at = name; *at; at++)
        if (*at == ' ') *at = '_';
    put_number(record, name, value);
}

/* Writes a record, and frees it. */
static Err write_record(TrainLog *log, const Trainer *r, json_t *record) {
    str_clear(&log->text);
    json_print(&log->text, record, 0, 0);
    str_puts(&log->text, "\n");
    json_decref(record);
    return file_write_all(log->jsonl, r->run.config->log_jsonl, log->text.s, log->text.len);
}

/* Adds the loss of each layer to the record. The loss is null for a layer without experts. */
static void put_layers(TrainLog *log, json_t *record, const Trainer *r, const StepReport *s, int loss) {
    json_t *layers = json_array();
    for (int64_t l = 0; l < r->layers; l++) {
        const double x = s->layer_router_loss[loss * r->layers + l];
        json_array_append_new(layers, isfinite(x) ? json_real(x) : json_null());
    }
    str_clear(&log->text);
    str_printf(&log->text, "%s_by_layer", ROUTER_LOSS_NAMES[loss]);
    json_object_set_new(record, log->text.s, layers);
}

static Err write_jsonl(TrainLog *log, const Trainer *r, const StepReport *s, int64_t ns) {
    const Rates rate = rates(r, s->samples, ns);
    const struct {
        const char *name;
        double value;
    } fields[] = {{"grad_norm", s->optim.grad_norm},
                  {"clip", s->optim.clip},
                  {"learning_rate", s->lr},
                  {"weight_decay", s->weight_decay},
                  {"loss_scale", s->loss_scale},
                  {"seconds", rate.seconds},
                  {"tokens_per_second", rate.tokens_per_second},
                  {"tflops", rate.tflops}};
    json_t *record = json_pack("{s:I, s:I, s:I}", "iteration", (json_int_t)r->iteration, "consumed_samples",
                               (json_int_t)r->consumed_samples, "consumed_tokens",
                               (json_int_t)(r->consumed_samples * r->run.config->seq_length));
    for (int i = 0; i < n_told(r); i++) put_loss(record, r, i, told(r, s->sum, i));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_number(record, fields[i].name, fields[i].value);
    if (r->run.config->log_num_zeros_in_grad) put_number(record, "num_zeros", s->optim.num_zeros);
    if (r->run.config->log_params_norm) put_number(record, "params_norm", s->optim.params_norm);
    if (config_measures_scores(r->run.config)) put_number(record, "max_attention_logit", s->max_score);
    for (int i = 0; i < ROUTER_LOSSES; i++)
        if (s->router_losses & 1u << i) put_number(record, ROUTER_LOSS_NAMES[i], s->router_loss[i]);
    for (int i = 0; s->layer_router_loss && i < ROUTER_LOSSES; i++)
        if (s->router_losses & 1u << i) put_layers(log, record, r, s, i);
    json_object_set_new(record, "batch_size", json_integer(s->samples));
    json_object_set_new(record, "skipped", json_boolean(s->optim.found_inf));
    return write_record(log, r, record);
}

static json_t *evaluation_record(const Trainer *r, const char *kind) {
    return json_pack("{s:s, s:I, s:I}", "kind", kind, "iteration", (json_int_t)r->iteration,
                     "consumed_samples", (json_int_t)r->consumed_samples);
}

/* The perplexity is computed from the first loss. If there are several losses, the record also contains each
 * loss under its name. */
static Err write_evaluation(TrainLog *log, const Trainer *r, const char *kind, const double *loss) {
    double total = 0;
    for (int i = 0; i < n_main(r); i++) total += loss[i];
    json_t *record = evaluation_record(r, kind);
    put_number(record, "loss", total);
    put_number(record, "perplexity", perplexity(loss[0]));
    for (int i = 0; n_main(r) > 1 && i < n_main(r); i++) put_loss(record, r, i, loss[i]);
    return write_record(log, r, record);
}

/* Writes a scalar twice: at the iteration and, as Megatron-LM does, at the number of consumed samples. */
static Err scalar_twice(TrainLog *log, const Trainer *r, const char *tag, double value) {
    ERR_RETURN(events_scalar(log->events, tag, r->iteration, value));
    str_clear(&log->text);
    str_printf(&log->text, "%s vs samples", tag);
    return events_scalar(log->events, log->text.s, r->consumed_samples, value);
}

static Err write_layers(TrainLog *log, const Trainer *r, const StepReport *s, int loss) {
    for (int64_t l = 0; l < r->layers; l++) {
        const double x = s->layer_router_loss[loss * r->layers + l];
        if (isnan(x)) continue;
        str_clear(&log->text);
        str_printf(&log->text, "moe/%s_layer_%lld", ROUTER_LOSS_NAMES[loss], (long long)l);
        ERR_RETURN(events_scalar(log->events, log->text.s, r->iteration, x));
    }
    return ERR_OK;
}

static Err write_scalars(TrainLog *log, const Trainer *r, const StepReport *s) {
    const Config *c = r->run.config;
    ERR_RETURN(scalar_twice(log, r, "learning-rate", s->lr));
    ERR_RETURN(scalar_twice(log, r, "batch-size", (double)s->samples));
    for (int i = 0; i < n_told(r); i++) ERR_RETURN(scalar_twice(log, r, loss_name(r, i), told(r, s->sum, i)));
    for (int i = n_losses(r); i < n_told(r); i++) {
        char tag[64];
        snprintf(tag, sizeof tag, "mtp_%d_cumulative_acceptance_rate", i - n_losses(r) + 1);
        ERR_RETURN(scalar_twice(log, r, tag, told(r, log->accepted, i)));
    }
    for (int i = 0; i < ROUTER_LOSSES; i++)
        if (s->router_losses & 1u << i)
            ERR_RETURN(scalar_twice(log, r, ROUTER_LOSS_NAMES[i], s->router_loss[i]));
    for (int i = 0; s->layer_router_loss && i < ROUTER_LOSSES; i++)
        if (s->router_losses & 1u << i) ERR_RETURN(write_layers(log, r, s, i));
    if (c->log_loss_scale_to_tensorboard) ERR_RETURN(scalar_twice(log, r, "loss-scale", s->loss_scale));
    if (c->log_world_size_to_tensorboard)
        ERR_RETURN(scalar_twice(log, r, "world-size", (double)config_ranks(c)));
    if (!s->optim.found_inf) ERR_RETURN(scalar_twice(log, r, "grad-norm", s->optim.grad_norm));
    if (c->log_num_zeros_in_grad) ERR_RETURN(scalar_twice(log, r, "num-zeros", s->optim.num_zeros));
    if (c->log_params_norm) ERR_RETURN(scalar_twice(log, r, "params-norm", s->optim.params_norm));
    if (c->log_max_attention_logit)
        ERR_RETURN(events_scalar(log->events, "max_attention_logit", r->iteration, s->max_score));
    if (!c->log_memory_to_tensorboard) return ERR_OK;
    ERR_RETURN(
        events_scalar(log->events, "mem-allocated-bytes", r->iteration, (double)r->run.device->allocated));
    return events_scalar(log->events, "mem-max-allocated-bytes", r->iteration,
                         (double)r->run.device->most_allocated);
}

/* Writes each timer's mean time per step since the last line, in seconds. A timer's value is the time of
 * the slowest rank. */
static Err write_times(TrainLog *log, const Trainer *r, const Times *times) {
    static const Timer TIMERS_OF_A_STEP[] = {TIMER_BATCH, TIMER_FORWARD_BACKWARD, TIMER_OPTIMIZER};
    const Config *c = r->run.config;
    const Rates rate = rates(r, log->samples, log->ns);
    const double steps = (double)log->steps;
    ERR_RETURN(events_scalar(log->events, "iteration-time", r->iteration, rate.seconds / steps));
    if (c->log_throughput) ERR_RETURN(events_scalar(log->events, "throughput", r->iteration, rate.tflops));
    for (size_t i = 0; times && i < sizeof TIMERS_OF_A_STEP / sizeof *TIMERS_OF_A_STEP; i++) {
        const Timer t = TIMERS_OF_A_STEP[i];
        const int64_t ns =
            timers_longest(times, r->run.comm ? comm_world(r->run.comm) : 1, t, c->timing_log_level);
        char tag[64];
        snprintf(tag, sizeof tag, "%s-time", timer_name(t));
        if (ns) ERR_RETURN(events_scalar(log->events, tag, r->iteration, 1e-9 * (double)ns / steps));
    }
    return ERR_OK;
}

static void forget(TrainLog *log) {
    memset(log->loss, 0, sizeof log->loss);
    memset(log->router_loss, 0, sizeof log->router_loss);
    log->losses = log->steps = log->skipped = log->nan = log->ns = log->samples = 0;
}

bool train_log_wants_times(const Trainer *r) {
    return r->run.config->timing_log_level > 0 && r->iteration % r->run.config->log_interval == 0;
}

/* As in Megatron-LM, the initial dynamic loss scale is so large that the gradients of the first steps overflow. A short
 * run can end before it has updated any parameter. */
static void note_skipped(TrainLog *log, const Trainer *r) {
    if (r->iteration < r->run.config->derived.train_iters || log->all_skipped < log->all_steps) return;
    train_log_hide_status(log);
    printf("note: all steps of this run were skipped, because the gradients overflowed: no parameter has "
           "changed. Train longer, or lower --initial-loss-scale or --loss-scale\n");
}

Err train_log_step(TrainLog *log, const Trainer *r, const StepReport *s, int64_t ns, const Times *times) {
    const Config *c = r->run.config;
    log->steps++, log->all_steps++;
    log->all_skipped += s->optim.found_inf;
    log->ns += ns;
    log->samples += s->samples;
    log->skipped += s->optim.found_inf;
    log->nan += s->loss_is_nan;
    for (int i = 0; i < ROUTER_LOSSES; i++) log->router_loss[i] += s->router_loss[i];
    const bool counts = !s->loss_is_nan && !s->optim.found_inf;
    for (int i = 0; counts && i < n_told(r); i++) log->loss[i] += told(r, s->sum, i);
    for (int i = n_losses(r); i < n_told(r); i++)
        log->accepted[i].loss += s->sum[i].loss, log->accepted[i].weight += s->sum[i].weight;
    log->losses += counts;
    if (log->jsonl >= 0) ERR_RETURN(write_jsonl(log, r, s, ns));
    if (log->events && r->iteration % c->tensorboard_log_interval == 0) ERR_RETURN(write_scalars(log, r, s));
    bool due = r->iteration % c->log_interval == 0;
    if (due && log->events && c->log_timers_to_tensorboard)
        ERR_RETURN(write_times(log, r, train_log_wants_times(r) ? times : NULL));
    if (!due && log->printed) {
        show_status(log, r);
        note_skipped(log, r);
        return ERR_OK;
    }
    log->printed = true;
    print_line(log, r, s);
    if (train_log_wants_times(r)) {
        str_clear(&log->text);
        timers_report(times, r->run.comm ? comm_world(r->run.comm) : 1, c->timing_log_option,
                      c->timing_log_level, log->steps, &log->text);
        fputs(log->text.s, stdout);
    }
    note_skipped(log, r);
    fflush(stdout);
    if (due) forget(log);
    return ERR_OK;
}

static void print_megatron_evaluation(const Trainer *r, const char *where, const double *loss) {
    char line[320], rule[320];
    int n = snprintf(line, sizeof line, " validation loss at %s | ", where);
    for (int i = 0; i < n_main(r) && n < (int)sizeof line; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s value: %.6E | %s PPL: %.6E | ", loss_name(r, i),
                      loss[i], loss_name(r, i), perplexity(loss[i]));
    const int width = n < (int)sizeof rule ? n : (int)sizeof rule - 1;
    for (int i = 0; i < width; i++) rule[i] = '-';
    rule[width] = 0;
    printf("%s\n%s\n%s\n", rule, line, rule);
}

static void print_short_evaluation(const Trainer *r, const char *where, const char *name,
                                   const double *loss) {
    printf("%s loss at %s %.4f | perplexity %.4g", name, where, loss[0], perplexity(loss[0]));
    for (int i = 1; i < n_main(r); i++) printf(" | %s %.4f", loss_name(r, i), loss[i]);
    printf("\n");
}

static Err evaluation_scalars(TrainLog *log, const Trainer *r, const char *name, const double *loss) {
    char tag[64];
    for (int i = 0; i < n_main(r); i++) {
        snprintf(tag, sizeof tag, "%s %s", loss_name(r, i), name);
        ERR_RETURN(scalar_twice(log, r, tag, loss[i]));
        snprintf(tag, sizeof tag, "%s %s ppl", loss_name(r, i), name);
        if (r->run.config->log_validation_ppl_to_tensorboard)
            ERR_RETURN(scalar_twice(log, r, tag, perplexity(loss[i])));
    }
    return ERR_OK;
}

Err train_log_eval(TrainLog *log, const Trainer *r, const char *where, const char *name,
                   const double loss[MODEL_LOSSES]) {
    train_log_hide_status(log);
    if (!log->brief)
        print_megatron_evaluation(r, where, loss);
    else
        print_short_evaluation(r, where, name, loss);
    if (log->jsonl >= 0) ERR_RETURN(write_evaluation(log, r, name, loss));
    return log->events ? evaluation_scalars(log, r, name, loss) : ERR_OK;
}

/* ---- accuracy of a task ---- */

static double ratio(const Accuracy *a) { return (double)a->correct / (double)a->total; }

static void print_accuracy(const TrainLog *log, int64_t epoch, const Accuracy *a, bool overall) {
    if (!log->brief)
        printf(" %s |epoch: %lld| %s%s: correct / total = %lld / %lld = %.4f %% | lm loss value: %.6E\n",
               overall ? ">>" : ">", (long long)epoch, overall ? "" : "metrics for ", a->name,
               (long long)a->correct, (long long)a->total, 100 * ratio(a), a->loss);
    else
        printf("epoch %lld | %s accuracy %.4f, %lld of %lld | loss %.4f\n", (long long)epoch, a->name,
               ratio(a), (long long)a->correct, (long long)a->total, a->loss);
}

static void put_accuracy(json_t *record, const Accuracy *a) {
    put_number(record, "loss", a->loss);
    put_number(record, "accuracy", ratio(a));
    json_object_set_new(record, "correct", json_integer(a->correct));
    json_object_set_new(record, "total", json_integer(a->total));
}

static Err write_accuracy(TrainLog *log, const Trainer *r, int64_t epoch, const Accuracy *all,
                          const Accuracy *file, int n) {
    json_t *record = evaluation_record(r, "validation"), *files = json_object();
    json_object_set_new(record, "epoch", json_integer(epoch));
    put_accuracy(record, all);
    json_object_set_new(record, "files", files);
    for (int i = 0; i < n; i++) {
        json_t *one = json_object();
        put_accuracy(one, &file[i]);
        json_object_set_new_nocheck(files, file[i].name, one);
    }
    return write_record(log, r, record);
}

Err train_log_accuracy(TrainLog *log, const Trainer *r, int64_t epoch, const Accuracy *file, int n) {
    Accuracy all = {.name = log->brief ? "validation" : "overall"};
    double loss = 0;
    train_log_hide_status(log);
    for (int i = 0; i < n; i++) {
        if (n > 1) print_accuracy(log, epoch, &file[i], false);
        all.correct += file[i].correct, all.total += file[i].total;
        loss += file[i].loss * (double)file[i].total;
    }
    all.loss = loss / (double)all.total;
    print_accuracy(log, epoch, &all, true);
    fflush(stdout);
    if (log->jsonl >= 0) ERR_RETURN(write_accuracy(log, r, epoch, &all, file, n));
    if (!log->events) return ERR_OK;
    ERR_RETURN(scalar_twice(log, r, "accuracy validation", ratio(&all)));
    return scalar_twice(log, r, "lm loss validation", all.loss);
}

Err train_log_progress(const Trainer *r, const char *event, int64_t iteration, int64_t consumed_samples) {
    const Config *c = r->run.config;
    if (!c->log_progress || !c->save) return ERR_OK;
    ERR_RETURN(file_mkdirs(c->save));
    char *path = mem_printf("%s/progress.txt", c->save), stamp[32];
    clock_stamp(stamp);
    char *line =
        mem_printf("%s\t%s\tIteration: %lld\tTokens (in billions): %.4f\tFLOPs so far: %.6e\n", stamp, event,
                   (long long)iteration, 1e-9 * (double)(consumed_samples * c->seq_length),
                   trainer_flops(r, consumed_samples));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    Err e = fd < 0 ? file_failed("open", path) : file_write_all(fd, path, line, strlen(line));
    if (fd >= 0 && close(fd) && !e.code) e = file_failed("close", path);
    free(path);
    free(line);
    return e;
}
