/* Tests the log line, the same record in JSON, the timers and the TensorBoard scalars of a run with
 * artificial numbers. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <regex.h>
#include <unistd.h>

#include "unit/err.h"
#include "unit/config_helper.h"
#include "unit/temp_dir.h"

#include "base/file.h"
#include "train/log.h"
#include "unit/train/event_reader.h"

/* ---- capturing standard output ---- */

typedef struct Capture {
    int saved;
    char dir[64], path[80];
} Capture;

static void capture_begin(Capture *c) {
    temp_dir(c->dir);
    snprintf(c->path, sizeof c->path, "%s/out", c->dir);
    fflush(stdout);
    c->saved = dup(STDOUT_FILENO);
    int fd = open(c->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(c->saved >= 0 && fd >= 0);
    dup2(fd, STDOUT_FILENO);
    close(fd);
}

/* Appends the captured output to `out`; release it with str_free. */
static void capture_end(Capture *c, Str *out) {
    fflush(stdout);
    dup2(c->saved, STDOUT_FILENO);
    close(c->saved);
    assert_ok(file_read(c->path, out));
    str_puts(out, "");
    assert_ok(file_remove_tree(c->dir));
}

static void expect_match(const char *pattern, const char *text) {
    regex_t r;
    assert_int_equal(regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB), 0);
    bool matches = !regexec(&r, text, 0, NULL, 0);
    regfree(&r);
    if (!matches) fail_msg("'%s' does not match '%s'", text, pattern);
}

/* ---- the numbers of a run ---- */

static const int64_t SECOND = 1000000000;

/* A trainer whose model consists only of its plan. */
static Trainer run_of(Setup *s) {
    Model *m = arena_alloc(s->arena, sizeof *m);
    *m = (Model){.plan = model_plan(&s->config, s->arena)};
    return (Trainer){.run = {.config = &s->config, .model = m}};
}

/* A run that writes logs, and its output. */
typedef struct Logged {
    Setup *s;
    Trainer run;
    TrainLog *log;
    Capture capture;
    Str out;
    char dir[64];
} Logged;

/* Starts a run that writes logs. %s in the options is replaced by a folder for files. Release with
 * logged_free. */
static Logged logged(const char *options) {
    Logged l = {.s = NULL};
    temp_dir(l.dir);
    l.s = setup_new(options, l.dir);
    l.run = run_of(l.s);
    return l;
}

static void start(Logged *l) {
    assert_ok(train_log_open(&l->run, NULL, 17, &l->log));
    capture_begin(&l->capture);
}

static void step(Logged *l, StepReport s, const Times *times) {
    l->run.iteration++;
    l->run.consumed_samples += s.samples;
    assert_ok(train_log_step(l->log, &l->run, &s, SECOND / 2, times));
}

static void evaluate(Logged *l, const char *where, const char *split, double first, double second) {
    assert_ok(train_log_eval(l->log, &l->run, where, split, (double[MODEL_LOSSES]){first, second}));
}

static void stop(Logged *l) {
    capture_end(&l->capture, &l->out);
    train_log_close(l->log);
}

static void logged_free(Logged *l) {
    str_free(&l->out);
    assert_ok(file_remove_tree(l->dir));
    setup_free(l->s);
}

static StepReport report(double loss) {
    return (StepReport){.sum = {{loss, 1}},
                        .loss = loss,
                        .samples = 4,
                        .loss_is_nan = isnan(loss),
                        .lr = 1.5e-4,
                        .weight_decay = 0.01,
                        .loss_scale = 1,
                        .optim = {.grad_norm = 12.34567, .clip = 0.081, .num_zeros = -1}};
}

/* Splits the text at newlines in place; returns the number of lines. */
static int lines_of(char *text, char *lines[], int max) {
    int n = 0;
    for (char *save, *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        assert_true(n < max);
        lines[n++] = l;
    }
    return n;
}

#define STAMP " \\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}\\]"

TEST(log_line_is_megatrons) {
    Logged l = logged("--log-interval 2 --global-batch-size 4 --train-iters 200");
    start(&l);
    step(&l, report(10), NULL);
    step(&l, report(8), NULL);
    step(&l, report(7), NULL);
    step(&l, report(5), NULL);
    stop(&l);
    char *lines[8];
    assert_int_equal(lines_of(l.out.s, lines, 8), 3);
    /* the first step of the process is printed, and also counts in the mean of the first interval */
    expect_match("^" STAMP
                 " iteration        1/     200 \\| consumed samples:            4 \\| elapsed time per "
                 "iteration \\(ms\\): 500\\.0 \\| learning rate: 1\\.500000E-04 \\| global batch size:     4 "
                 "\\| lm loss: 1\\.000000E\\+01 \\| loss scale: 1\\.0 \\| grad norm: 12\\.346 \\| number of "
                 "skipped iterations:   0 \\| number of nan iterations:   0 \\|.* time left: 0:01:39 \\|$",
                 lines[0]);
    expect_match("^" STAMP " iteration        2/     200 \\|.* lm loss: 9\\.000000E\\+00 \\|", lines[1]);
    expect_match(
        "^" STAMP
        " iteration        4/     200 \\| consumed samples:           16 \\|.* lm loss: 6\\.000000E\\+00 \\|"
        ".* time left: 0:01:38 \\|$",
        lines[2]); /* 196 steps of half a second */
    logged_free(&l);
}

TEST(skipped_and_nan_steps_are_counted_not_averaged) {
    Logged l =
        logged("--log-interval 3 --global-batch-size 4 --log-throughput --log-num-zeros-in-grad --fp16");
    l.run.iteration = 3;
    start(&l);
    StepReport skipped = report(1000), last = report(3);
    skipped.optim.found_inf = true;
    skipped.optim.grad_norm = INFINITY;
    last.optim.num_zeros = 17;
    step(&l, skipped, NULL);
    step(&l, report(NAN), NULL);
    step(&l, last, NULL);
    stop(&l);
    char *lines[8];
    assert_int_equal(lines_of(l.out.s, lines, 8), 2);
    assert_null(strstr(lines[0], "lm loss"));
    assert_null(strstr(lines[0], "grad norm"));
    expect_match("number of skipped iterations:   1 \\| number of nan iterations:   0 \\|", lines[0]);
    expect_match("throughput per rank \\(TFLOP/s\\): [0-9.e-]+ \\|", lines[1]);
    expect_match("lm loss: 3\\.000000E\\+00 \\|.* grad norm: 12\\.346 \\| num zeros: 17 \\| number of "
                 "skipped iterations:   1 \\| number of nan iterations:   1 \\|",
                 lines[1]);
    logged_free(&l);
}

TEST(short_lines_count_skipped_and_nan_steps) {
    Logged l = logged("--log-interval 4 --global-batch-size 4 --fp16 --log-format short");
    StepReport skipped = report(1000);
    skipped.optim.found_inf = true;
    start(&l);
    step(&l, report(5), NULL);
    step(&l, skipped, NULL);
    step(&l, report(NAN), NULL);
    step(&l, report(NAN), NULL);
    stop(&l);
    expect_match(
        "\nstep 4/10 \\| loss 5\\.0000 \\| [^\n]* \\| 0:00:03 left \\| [^\n]* \\| 1 skipped, 2 nan\n$",
        l.out.s);
    logged_free(&l);
    l = logged("--log-interval 2 --global-batch-size 4 --fp16 --log-format short");
    start(&l);
    step(&l, report(5), NULL);
    step(&l, report(NAN), NULL);
    step(&l, report(5), NULL);
    step(&l, skipped, NULL);
    step(&l, report(5), NULL);
    step(&l, report(5), NULL);
    stop(&l);
    expect_match("\nstep 2/10 [^\n]* \\| 0 skipped, 1 nan\nstep 4/10 [^\n]* \\| 1 skipped, 0 nan\n"
                 "step 6/10 [^\n]* \\| lr [0-9.e-]*\n$",
                 l.out.s);
    logged_free(&l);
}

TEST(throughput_is_that_of_a_gpu) {
    Logged l = logged("--log-interval 1 --global-batch-size 4 --log-throughput");
    l.s->config.device = ON_CUDA;
    start(&l);
    step(&l, report(10), NULL);
    stop(&l);
    expect_match(" throughput per GPU \\(TFLOP/s/GPU\\): 0\\.0 \\|", l.out.s);
    logged_free(&l);
}

/* The format is that of Megatron-LM core/timers.py: (name + ' ').ljust(48, '.') and two decimals. Timers of
 * level 2, and ranks that have not run a timer, are omitted. */
TEST(timers_are_padded_and_averaged) {
    const Times of[] = {
        {{[TIMER_BATCH] = 3000000, [TIMER_FORWARD_BACKWARD] = 500000000, [TIMER_OPTIMIZER] = 25000}},
        {{[TIMER_FORWARD_BACKWARD] = 600000000}},
        {{[TIMER_FORWARD_BACKWARD] = 400000000, [TIMER_OPTIMIZER] = 65000}}};
    static const char *const EXPECTED[] = {
        [TIMING_MINMAX] = "(min, max) time across ranks (ms):\n"
                          "    forward-backward ...............................: (100.00, 150.00)\n"
                          "    optimizer ......................................: (0.01, 0.02)\n",
        [TIMING_MAX] = "max time across ranks (ms):\n"
                       "    forward-backward ...............................: 150.00\n"
                       "    optimizer ......................................: 0.02\n",
        [TIMING_ALL] =
            "times across ranks (ms):\n"
            "  forward-backward:\n     rank  0: 125.00\n     rank  1: 150.00\n     rank  2: 100.00\n"
            "  optimizer:\n     rank  0: 0.01\n     rank  2: 0.02\n"};
    for (int option = 0; option < 3; option++) {
        Str out = {0};
        timers_report(of, 3, (TimingLogOption)option, 1, 4, &out);
        assert_string_equal(out.s, EXPECTED[option]);
        str_free(&out);
    }
}

static void gather(void *arg, Comm *comm) {
    bool *right = arg;
    Timers t = {0};
    Arena *arena = arena_new();
    t.spent.ns[TIMER_SAVE] = 7 + comm_rank(comm);
    const Times *got = timers_gather(&t, comm, arena);
    bool all = !t.spent.ns[TIMER_SAVE];
    for (int r = 0; r < comm_world(comm); r++)
        all &= got[r].ns[TIMER_SAVE] == 7 + r && !got[r].ns[TIMER_BATCH];
    right[comm_rank(comm)] = all;
    arena_free(arena);
}

TEST(every_rank_gets_the_times_of_all) {
    bool right[3] = {false};
    comm_threads(3, NULL, gather, right);
    for (int r = 0; r < 3; r++) assert_true(right[r]);
    Timers t = {0};
    Arena *arena = arena_new();
    timer_start(&t, TIMER_BATCH);
    timer_stop(&t, TIMER_BATCH);
    const int64_t spent = t.spent.ns[TIMER_BATCH];
    assert_true(spent >= 0);
    assert_int_equal(timers_gather(&t, NULL, arena)[0].ns[TIMER_BATCH], spent);
    assert_int_equal(t.spent.ns[TIMER_BATCH], 0);
    arena_free(arena);
}

TEST(timers_follow_the_line_when_asked_for) {
    Logged l = logged("--log-interval 1 --timing-log-level 1 --global-batch-size 4");
    Times times = {.ns = {[TIMER_OPTIMIZER] = SECOND}};
    start(&l);
    step(&l, report(10), &times);
    stop(&l);
    expect_match("iteration .*\\|\n\\(min, max\\) time across ranks \\(ms\\):\n    optimizer [.]+: "
                 "\\(1000\\.00, 1000\\.00\\)\n$",
                 l.out.s);
    logged_free(&l);
}

TEST(evaluation_is_framed_by_dashes) {
    Logged l = logged("");
    start(&l);
    evaluate(&l, "iteration 100 on validation set", "validation", 2, 0);
    evaluate(&l, "iteration 100 on test set", "test", 1000, 0);
    stop(&l);
    char *lines[8];
    assert_int_equal(lines_of(l.out.s, lines, 8), 6);
    assert_string_equal(lines[1], " validation loss at iteration 100 on validation set | lm loss value: "
                                  "2.000000E+00 | lm loss PPL: 7.389056E+00 | ");
    assert_int_equal(strspn(lines[0], "-"), strlen(lines[1]));
    assert_string_equal(lines[0], lines[2]);
    expect_match("PPL: 4\\.851652E\\+08 \\| $", lines[4]); /* exp(20), Megatron-LM's limit */
    logged_free(&l);
}

/* Logs two steps and an evaluation with two losses. */
static Logged log_two_losses(const char *words) {
    Logged l = logged(words);
    l.run.run.model->plan.loss[1] =
        (LossSpec){.name = "sop loss", .extent = EXTENT_SAMPLES, .weights = FIELDS};
    l.run.run.model->plan.n_losses = l.run.run.model->plan.n_main = 2;
    StepReport first = report(8), second = report(6);
    first.sum[1] = (LossSum){3, 4}, second.sum[1] = (LossSum){1, 4};
    start(&l);
    step(&l, first, NULL);
    step(&l, second, NULL);
    evaluate(&l, "here", "validation", 2, 0.5);
    stop(&l);
    return l;
}

/* Each of two losses must be logged with its name. */
TEST(each_loss_has_its_name) {
    Logged l = log_two_losses("--log-jsonl %s/log.jsonl --log-interval 2 --global-batch-size 4");
    Str records = {0};
    expect_match("iteration        2/.*\\| lm loss: 7\\.000000E\\+00 \\| sop loss: 5\\.000000E-01 \\|",
                 l.out.s);
    expect_match("lm loss PPL: 7\\.389056E\\+00 \\| sop loss value: 5\\.000000E-01 \\| sop loss PPL: "
                 "1\\.648721E\\+00 \\|",
                 l.out.s);
    assert_ok(file_read(l.s->config.log_jsonl, &records));
    str_puts(&records, "");
    expect_match("\"lm_loss\": 6.0, \"sop_loss\": 0.25, \"grad_norm\"", records.s);
    expect_match("\"loss\": 2.5, \"perplexity\": 7.389[0-9]*, \"lm_loss\": 2.0, \"sop_loss\": 0.5}",
                 records.s);
    str_free(&records);
    logged_free(&l);
    l = log_two_losses("--log-jsonl %s/log.jsonl --log-interval 2 --global-batch-size 4 --log-format short");
    expect_match("^step 1/[0-9]+ \\| loss 8\\.0000 \\| sop loss 0\\.7500 \\| ", l.out.s);
    expect_match("\nstep 2/[0-9]+ \\| loss 7\\.0000 \\| sop loss 0\\.5000 \\| ", l.out.s);
    expect_match("\nvalidation loss at here 2\\.0000 \\| perplexity 7\\.389 \\| sop loss 0\\.5000\n",
                 l.out.s);
    logged_free(&l);
}

/* ---- files ---- */

/* The first record has the sizes of the layout, all of which differ here. */
TEST(the_header_has_the_layout) {
    Logged l =
        logged("--log-jsonl %s/log.jsonl --ranks 420 --tensor-model-parallel-size 2 --sequence-parallel "
               "--context-parallel-size 3 --seq-length 24 --pipeline-model-parallel-size 5 --num-layers 10 "
               "--num-experts 7 --expert-model-parallel-size 7 --expert-tensor-parallel-size 1 "
               "--disable-bias-linear --global-batch-size 70");
    Str records = {0};
    l.run.iteration = 6;
    start(&l);
    stop(&l);
    assert_ok(file_read(l.s->config.log_jsonl, &records));
    str_puts(&records, "");
    expect_match("\"iteration\": 6, \"parameters\": 17, ", records.s);
    expect_match(
        "\"layout\": \\{\"ranks\": 420, \"tensor\": 2, \"pipeline\": 5, \"context\": 3, \"expert\": 7, "
        "\"data\": 14\\}",
        records.s);
    str_free(&records);
    logged_free(&l);
}

TEST(jsonl_is_json_even_without_numbers) {
    Logged l = logged("--log-jsonl %s/log.jsonl --global-batch-size 4");
    StepReport bad = report(NAN);
    bad.optim.found_inf = true;
    bad.optim.grad_norm = INFINITY;
    StepReport asked = report(0.1);
    asked.optim.params_norm = 16.25, asked.optim.num_zeros = 17;
    start(&l);
    step(&l, report(0.1), NULL);
    step(&l, bad, NULL);
    l.s->config.ranks = 2;
    step(&l, report(0.1), NULL);
    l.s->config.log_params_norm = l.s->config.log_num_zeros_in_grad = true;
    step(&l, asked, NULL);
    stop(&l);
    str_clear(&l.out);
    assert_ok(file_read(l.s->config.log_jsonl, &l.out));
    char *lines[6];
    assert_int_equal(lines_of(l.out.s, lines, 6), 5);
    json_t *good = json_loads(lines[1], JSON_REJECT_DUPLICATES, NULL), *null = json_loads(lines[2], 0, NULL),
           *shared = json_loads(lines[3], 0, NULL),
           *more = json_loads(lines[4], JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(good);
    assert_non_null(null);
    assert_int_equal(json_integer_value(json_object_get(good, "iteration")), 1);
    assert_int_equal(json_integer_value(json_object_get(good, "consumed_tokens")),
                     4 * l.s->config.seq_length);
    assert_true(json_real_value(json_object_get(good, "lm_loss")) == 0.1);
    assert_non_null(strstr(lines[1], "\"lm_loss\": 0.1,")); /* the shortest representation of the double */
    assert_true(json_real_value(json_object_get(good, "learning_rate")) == 1.5e-4);
    assert_true(json_is_false(json_object_get(good, "skipped")));
    assert_true(json_is_null(json_object_get(null, "lm_loss")));
    assert_true(json_is_null(json_object_get(null, "grad_norm")));
    assert_true(json_is_true(json_object_get(null, "skipped")));
    const double tflops = json_real_value(json_object_get(good, "tflops"));
    assert_true(tflops > 0);
    assert_true(json_real_value(json_object_get(shared, "tflops")) == tflops / 2); /* one of two ranks */
    assert_true(!json_object_get(good, "params_norm") && !json_object_get(good, "num_zeros"));
    assert_true(json_number_value(json_object_get(more, "params_norm")) == 16.25);
    assert_true(json_number_value(json_object_get(more, "num_zeros")) == 17);
    json_decref(good), json_decref(null), json_decref(shared), json_decref(more);
    logged_free(&l);
}

/* Runs four steps of half a second and an evaluation, and reads the events. */
static EventFile events_of(const char *options) {
    char *all = mem_printf("--tensorboard-dir %%s --tensorboard-log-interval 2 --log-interval 4 "
                           "--global-batch-size 4 --log-throughput %s",
                           options);
    Logged l = logged(all);
    free(all);
    l.run.run.device = device_cpu(1);
    l.run.run.device->allocated += 3, l.run.run.device->most_allocated += 5;
    Times times = {.ns = {[TIMER_BATCH] = 4 * SECOND, [TIMER_FORWARD_BACKWARD] = SECOND, [TIMER_SAVE] = 8}};
    start(&l);
    for (int i = 1; i <= 4; i++) step(&l, report(i), &times);
    evaluate(&l, "here", "validation", 2, 0);
    stop(&l);
    EventFile f = reader_read(l.dir);
    device_free(l.run.run.device);
    logged_free(&l);
    return f;
}

TEST(a_skipped_step_has_no_grad_norm) {
    Logged l = logged("--tensorboard-dir %s --global-batch-size 4 --fp16");
    Scalar last = {.step = 0};
    StepReport skipped = report(7);
    skipped.optim.found_inf = true;
    start(&l);
    step(&l, report(5), NULL);
    step(&l, skipped, NULL);
    stop(&l);
    EventFile f = reader_read(l.dir);
    assert_int_equal(reader_find(&f, "grad-norm", &last), 1);
    assert_int_equal(last.step, 1);
    assert_int_equal(reader_find(&f, "lm loss", &last), 2);
    assert_true(last.value == 7);
    free(f.scalars);
    logged_free(&l);
}

TEST(scalars_have_megatrons_tags) {
    EventFile f = events_of("--log-num-zeros-in-grad --log-validation-ppl-to-tensorboard "
                            "--log-world-size-to-tensorboard --log-memory-to-tensorboard --ranks 2 "
                            "--tensor-model-parallel-size 2 --sequence-parallel");
    static const char *const TAGS[] = {"learning-rate", "batch-size", "lm loss",   "loss-scale",
                                       "grad-norm",     "num-zeros",  "world-size"};
    Scalar last = {.step = 0};
    for (size_t i = 0; i < sizeof TAGS / sizeof *TAGS; i++) {
        if (reader_find(&f, TAGS[i], &last) != 2) fail_msg("'%s' is not there twice", TAGS[i]);
        assert_int_equal(last.step, 4);
        char samples[64];
        snprintf(samples, sizeof samples, "%s vs samples", TAGS[i]);
        assert_int_equal(reader_find(&f, samples, &last), 2);
        assert_int_equal(last.step, 16);
    }
    assert_true(last.value == 2); /* the world size */
    assert_int_equal(reader_find(&f, "lm loss", &last), 2);
    assert_true(last.value == 4);
    assert_int_equal(reader_find(&f, "lm loss validation", &last), 1);
    assert_int_equal(reader_find(&f, "lm loss validation ppl vs samples", &last), 1);
    assert_true(last.value == (float)exp(2));
    assert_int_equal(reader_find(&f, "mem-allocated-bytes", &last), 2);
    assert_true(last.value == 3);
    assert_int_equal(reader_find(&f, "mem-max-allocated-bytes", &last), 2);
    assert_true(last.value == 5);
    /* Without --log-timers-to-tensorboard, there are no times. */
    assert_int_equal(reader_find(&f, "iteration-time", &last), 0);
    assert_int_equal(reader_find(&f, "throughput", &last), 0);
    free(f.scalars);
}

/* A resumed run may have other options. */
TEST(options_are_an_event_of_the_first_step) {
    Logged l = logged("--tensorboard-dir %s");
    l.run.iteration = 3;
    start(&l);
    stop(&l);
    EventFile f = reader_read(l.dir);
    Scalar last = {.step = 0};
    assert_int_equal(reader_find(&f, "options/text_summary", &last), 1);
    assert_int_equal(last.step, 3);
    static const char BEGIN[] = "| option | value |\n|---|---|\n| num_layers | `2` |\n";
    char row[200];
    snprintf(row, sizeof row, "\n| tensorboard_dir | `\"%s\"` |\n", l.dir);
    assert_memory_equal(last.text, BEGIN, sizeof BEGIN - 1);
    assert_non_null(strstr(last.text, row));
    free(f.scalars);
    logged_free(&l);
}

/* As in Megatron-LM, these tags are written together with the log line, and only by iteration. */
TEST(times_are_means_at_log_lines) {
    EventFile f =
        events_of("--log-timers-to-tensorboard --timing-log-level 1 --disable-log-loss-scale-to-tensorboard");
    Scalar last = {.step = 0};
    assert_int_equal(reader_find(&f, "iteration-time", &last), 1);
    assert_int_equal(last.step, 4);
    assert_true(last.value == 0.5f);
    assert_int_equal(reader_find(&f, "throughput", &last), 1);
    assert_int_equal(reader_find(&f, "forward-backward-time", &last), 1);
    assert_true(last.value == 0.25f); /* 1 s over four steps */
    static const char *const ABSENT[] = {
        "iteration-time vs samples", "batch-generator-time", "optimizer-time",
        "save-checkpoint-time",      "loss-scale",           "world-size"};
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT; i++)
        if (reader_find(&f, ABSENT[i], &last)) fail_msg("'%s' is there", ABSENT[i]);
    free(f.scalars);
}

TEST(progress_is_appended) {
    Logged l = logged("--log-progress --save %s/checkpoints --save-interval 5");
    l.run.iteration = 9, l.run.consumed_samples = 36; /* a later step than that of the checkpoint */
    assert_ok(train_log_progress(&l.run, "Starting", 7, 28));
    assert_ok(train_log_progress(&l.run, "Saved checkpoint", 8, 1234567890));
    char path[160], want[160];
    snprintf(path, sizeof path, "%s/progress.txt", l.s->config.save);
    assert_ok(file_read(path, &l.out));
    char *lines[4];
    assert_int_equal(lines_of(l.out.s, lines, 4), 2);
    expect_match("\tStarting\tIteration: 7\tTokens", lines[0]);
    snprintf(want, sizeof want,
             "\tSaved checkpoint\tIteration: 8\tTokens (in billions): %.4f\tFLOPs so far: %.6e",
             1.23456789 * (double)l.s->config.seq_length, 1234567890 * trainer_flops(&l.run, 1));
    assert_non_null(strstr(lines[1], want));
    logged_free(&l);
}

/* Starts and ends a run whose --log-jsonl file already contains `text`. `said` receives the
 * output. */
static Err open_over(const char *text, int64_t iteration, Str *said, Str *content) {
    char dir[64];
    temp_dir(dir);
    Setup *s = setup_new("--log-jsonl %s/log.jsonl --global-batch-size 4", dir);
    Trainer run = run_of(s);
    run.iteration = iteration;
    TrainLog *log;
    Capture c;
    assert_ok(file_write_atomic(s->config.log_jsonl, text, strlen(text)));
    capture_begin(&c);
    Err e = train_log_open(&run, NULL, 0, &log);
    str_clear(said), str_clear(content);
    capture_end(&c, said);
    train_log_close(log);
    assert_ok(file_read(s->config.log_jsonl, content));
    str_puts(content, "");
    assert_ok(file_remove_tree(dir));
    setup_free(s);
    return e;
}

TEST(only_a_log_is_appended_to) {
    static const char *const OTHERS[] = {"num-layers = 2\n", "\n{\"iteration\": 1}\n", "[1]\n",
                                         "{\n  \"iteration\": 1\n}\n"};
    Str said = {0}, content = {0};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        const Err e = open_over(OTHERS[i], 0, &said, &content);
        assert_int_equal(e.code, ERR_USER);
        assert_non_null(strstr(e.msg, "log.jsonl' is not a log: "));
        assert_string_equal(content.s, OTHERS[i]);
    }
    assert_ok(open_over("", 0, &said, &content));
    assert_int_equal(strncmp(content.s, "{\"kind\": \"run\"", 14), 0);
    assert_ok(open_over("{\"itera", 0, &said, &content));
    assert_int_equal(strncmp(content.s, "{\"itera\n{\"kind\"", 15), 0);
    str_free(&said), str_free(&content);
}

TEST(a_run_from_step_0_says_that_it_appends) {
    static const char HEADER[] = "{\"kind\": \"run\"}\n",
                      STEPS[] = "{\"kind\": \"run\"}\n{\"iteration\": 1, \"lm_loss\": 5}\n";
    Str said = {0}, content = {0};
    assert_ok(open_over(STEPS, 0, &said, &content));
    expect_match("^  note: /.*/log\\.jsonl has steps of an earlier run", said.s);
    assert_ok(open_over(STEPS, 1, &said, &content));
    assert_string_equal(said.s, "");
    assert_ok(open_over(HEADER, 0, &said, &content));
    assert_string_equal(said.s, "");
    str_free(&said), str_free(&content);
}

TEST(an_unwritable_log_is_a_sentence) {
    Setup *s = setup_new("--log-jsonl /nowhere/log.jsonl");
    Trainer run = run_of(s);
    TrainLog *log = NULL;
    Err e = train_log_open(&run, NULL, 0, &log);
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, "/nowhere/log.jsonl"));
    assert_null(log);
    setup_free(s);
}
