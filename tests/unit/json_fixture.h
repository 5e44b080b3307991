/* A fixture that loads a JSON file as the state of a group of tests. */
#pragma once

#include <jansson.h>

static inline int json_fixture_load(void **state, const char *path) {
    json_error_t why;
    *state = json_load_file(path, 0, &why);
    return *state ? 0 : -1;
}

static inline int json_fixture_free(void **state) {
    json_decref(*state);
    return 0;
}
