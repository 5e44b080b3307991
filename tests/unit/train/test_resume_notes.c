/* Tests the notes on differences from the run that is resumed, in options, data files and schedules. */
#include <jansson.h>
#include <string.h>

#include "unit/config_helper.h"

#include "run/option_changes.h"
#include "train/resume_notes.h"

static const char NOTE[] = "the data files have changed since the checkpoint";

/* Whether the note appears if a run with this data resumes a run with `saved`. */
static bool noted(const char *data, const char *saved) {
    Setup *s = setup_new("--seed 1");
    json_t *state = json_loads(saved, 0, NULL);
    assert_non_null(state);
    Str out = {0};
    const ModelRun run = {.config = &s->config};
    resume_notes(&(Trainer){.run = run, .data_fingerprint = data}, state, &out);
    const bool found = out.len && strstr(out.s, NOTE);
    str_free(&out);
    json_decref(state);
    setup_free(s);
    return found;
}

TEST(files_under_the_same_names_are_compared) {
    static const char SAVED[] = "{\"data\": \"aa\", \"config\": {\"mock_data\": true}}";
    assert_false(noted("aa", SAVED));
    assert_true(noted("ab", SAVED));
    assert_false(noted(NULL, SAVED)); /* a run without Data */
}

TEST(a_checkpoint_without_a_fingerprint_has_no_note) {
    assert_false(noted("aa", "{\"config\": {\"mock_data\": true}}"));
    assert_false(noted("aa", "{\"data\": 5, \"config\": {\"mock_data\": true}}"));
}

TEST(other_names_have_their_own_note) {
    static const char *const NAMES[] = {"data_path",  "train_data_path", "train_data",
                                        "valid_data", "valid_data_path", "test_data_path"};
    assert_false(noted("ab", "{\"data\": \"aa\", \"config\": {\"mock_data\": false}}"));
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char saved[100];
        snprintf(saved, sizeof saved, "{\"data\": \"aa\", \"config\": {\"%s\": [\"x\"]}}", NAMES[i]);
        if (noted("ab", saved)) fail_msg("--%s has another name, and a second note", NAMES[i]);
    }
}

/* With a constant learning rate, warm-ups of 3 and 4 steps differ after 1, 2 and 3 samples. If the run
 * resumes after 3, only the next step differs. */
TEST(a_rate_that_differs_at_the_next_step_alone_changes) {
    static const struct {
        int64_t samples;
        const char *note;
    } ROWS[] = {{2, "the learning rates of the remaining steps change\n"},
                {3, "the learning rates of the remaining steps change\n"},
                {4, "the learning rates of the remaining steps do not change\n"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Setup *s = setup_new("--lr-decay-style constant --lr-warmup-iters 3");
        json_t *saved = json_loads("{\"config\": {\"lr_warmup_iters\": 4}}", 0, NULL);
        Str out = {0};
        const ModelRun run = {.config = &s->config};
        resume_notes(
            &(Trainer){.run = run, .consumed_samples = ROWS[i].samples, .schedule_samples = ROWS[i].samples},
            saved, &out);
        assert_non_null(out.s);
        if (!strstr(out.s, ROWS[i].note)) fail_msg("at sample %d: %s", (int)ROWS[i].samples, out.s);
        str_free(&out);
        json_decref(saved);
        setup_free(s);
    }
}

/* Two skipped steps of 4 samples count only as consumed samples. */
TEST(schedules_that_continue_elsewhere_have_a_note) {
    Setup *s = setup_new("--override-opt_param-scheduler");
    json_t *saved = json_loads("{\"config\": {}, \"progress\": {\"scheduler_samples\": 12}}", 0, NULL);
    Str out = {0};
    resume_notes(&(Trainer){.run = {.config = &s->config}, .consumed_samples = 20, .schedule_samples = 20},
                 saved, &out);
    assert_non_null(out.s);
    assert_non_null(strstr(out.s, "continue at sample 20; in the checkpoint, they are at 12\n"));
    str_free(&out);
    json_decref(saved);
    setup_free(s);
}

static bool is_in(int option, const int *list, size_t n) {
    while (n && list[n - 1] != option) n--;
    return n;
}
#define IS_IN(option, ...) is_in(option, (int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

/* Whether no note is needed, because an option has no effect on the remaining steps, or a changed value is
 * refused, as for --optimizer. */
static bool is_silent(int group, int option) {
    return IS_IN(group, OPTION_GROUP_CHECKPOINT, OPTION_GROUP_LOGGING, OPTION_GROUP_EVALUATION,
                 OPTION_GROUP_PARALLEL, OPTION_GROUP_GENERATE, OPTION_GROUP_SERVE) ||
           IS_IN(option, OPTION_add_position_embedding, OPTION_init_method_std,
                 OPTION_embedding_init_method_std, OPTION_exit_interval, OPTION_exit_duration_in_mins,
                 OPTION_exit_signal_handler, OPTION_exit_signal, OPTION_skip_train,
                 OPTION_check_for_nan_in_loss_and_grad, OPTION_fp8_keep_weights, OPTION_fp8_keep_inputs,
                 OPTION_optimizer, OPTION_override_opt_param_scheduler,
                 OPTION_use_checkpoint_opt_param_scheduler, OPTION_data_cache_path, OPTION_mmap_bin_files,
                 OPTION_num_workers, OPTION_tokenizer_hf_include_special_tokens, OPTION_moe_per_layer_logging,
                 OPTION_mrope_section, OPTION_data_args_path, OPTION_per_split_data_args_path);
}

TEST(every_option_that_changes_coming_steps_has_a_note) {
    for (int i = 0, group = 0; i < OPTIONS; i++) {
        const char *name = config_field_name(i);
        if (!name) group = i;
        const ConfigClass c = name ? config_option_class(i) : CLASS_LAYOUT;
        const bool noted =
            c == CLASS_NUMERIC || (c == CLASS_RUN && !is_silent(group, i)) ||
            IS_IN(i, OPTION_hidden_dropout, OPTION_attention_dropout, OPTION_classifier_dropout);
        if ((option_change(i) != CHANGES_NOTHING) != noted)
            fail_msg("--%s %s a note", name, noted ? "has not" : "has");
    }
}
