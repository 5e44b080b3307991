/* Notes on what differs from the run that is continued: here those on the files of the data. */
#include <jansson.h>
#include <string.h>

#include "unit/config_helper.h"

#include "train/resume_notes.h"

static const char NOTE[] = "the data files have changed since the checkpoint";

/* Whether a run with this data has the note, after one with `saved`. */
static bool noted(const char *data, const char *saved) {
    Setup *s = setup_new("--seed 1");
    json_t *state = json_loads(saved, 0, NULL);
    assert_non_null(state);
    Str out = {0};
    resume_notes(&(Trainer){.config = &s->config, .derived = &s->derived, .data_fingerprint = data}, state,
                 &out);
    const bool found = out.len && strstr(out.s, NOTE);
    str_free(&out);
    json_decref(state);
    setup_free(s);
    return found;
}

static void files_under_the_same_names_are_compared(void **state) {
    (void)state;
    static const char SAVED[] = "{\"data\": \"aa\", \"config\": {\"mock_data\": true}}";
    assert_false(noted("aa", SAVED));
    assert_true(noted("ab", SAVED));
    assert_false(noted(NULL, SAVED)); /* a loop that has no Data */
}

static void a_checkpoint_without_a_fingerprint_has_no_note(void **state) {
    (void)state;
    assert_false(noted("aa", "{\"config\": {\"mock_data\": true}}"));
    assert_false(noted("aa", "{\"data\": 5, \"config\": {\"mock_data\": true}}"));
}

static void other_names_have_their_own_note(void **state) {
    (void)state;
    assert_false(noted("ab", "{\"data\": \"aa\", \"config\": {\"mock_data\": false}}"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_under_the_same_names_are_compared),
        cmocka_unit_test(a_checkpoint_without_a_fingerprint_has_no_note),
        cmocka_unit_test(other_names_have_their_own_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
