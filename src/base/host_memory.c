#include "base/host_memory.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

/* ---- files ---- */

/* A file's lines, or none if the file cannot be read. */
typedef struct Lines {
    Str text;
    char *rest;
} Lines;

static Lines lines_of(const char *folder, const char *name) {
    char *path = mem_printf("%s/%s", folder, name);
    Lines l = {0};
    if (!file_read(path, &l.text).code) l.rest = l.text.s;
    free(path);
    return l;
}

static char *next_line(Lines *l) { return strsep(&l->rest, "\n"); }

/* Parses a number that consists only of digits. Returns `otherwise` if the text is anything else, such as "max", or if
 * the number overflows. */
static size_t number_at(const char *text, size_t otherwise) {
    char *end;
    text += strspn(text, " \t");
    if (!isdigit((unsigned char)*text)) return otherwise;
    errno = 0;
    const unsigned long long n = strtoull(text, &end, 10);
    const bool ends = !*end || isspace((unsigned char)*end);
    return errno || !ends || n > SIZE_MAX ? otherwise : (size_t)n;
}

/* Returns the number after `key` in the first line that begins with `key`. If `key` is "", this is the first line. */
static size_t number_in(const char *folder, const char *name, const char *key, size_t otherwise) {
    Lines lines = lines_of(folder, name);
    const char *line = next_line(&lines);
    while (line && strncmp(line, key, strlen(key))) line = next_line(&lines);
    const size_t n = line ? number_at(line + strlen(key), otherwise) : otherwise;
    str_free(&lines.text);
    return n;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* ---- control groups ---- */

/* The names that a cgroup version uses for its mount type and for the files in a group. */
typedef struct Version {
    const char *mount, *controller; /* if `controller` is "", all controllers share one tree */
    const char *limit, *usage, *inactive, *active;
} Version;

static const Version VERSIONS[] = {
    {"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
     "total_active_file "},
    {"cgroup2", "", "memory.max", "memory.current", "inactive_file ", "active_file "},
};

static size_t left_of(const char *folder, const Version *v) {
    const size_t limit = number_in(folder, v->limit, "", SIZE_MAX),
                 usage = number_in(folder, v->usage, "", 0),
                 inactive = smaller(usage, number_in(folder, "memory.stat", v->inactive, 0)),
                 active = smaller(usage - inactive, number_in(folder, "memory.stat", v->active, 0)),
                 used = usage - inactive - active;
    if (limit == SIZE_MAX) return SIZE_MAX;
    return limit > used ? limit - used : 0;
}

/* Returns the smallest amount of memory left under the limits of a group and its ancestors up to the mount point. `top`
 * is the length of the mount point's path. */
static size_t left_above(char *folder, size_t top, const Version *v) {
    size_t least = left_of(folder, v);
    for (char *slash; (slash = strrchr(folder + top, '/'));) {
        *slash = 0;
        least = smaller(least, left_of(folder, v));
    }
    return least;
}

/* Returns whether a list such as "rw,memory" contains the word. The word "" is in every list. */
static bool lists(const char *list, const char *word) {
    const size_t n = strlen(word);
    if (!n) return true;
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ',')) return true;
    return false;
}

/* Returns this process's group in a version's tree, or NULL if it has none there. The group comes from a line
 * "number:controllers:path". */
static char *own_group(const char *root, const Version *v) {
    Lines lines = lines_of(root, "proc/self/cgroup");
    char *found = NULL;
    for (char *line; !found && (line = next_line(&lines));) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(++controllers, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        if (*v->controller ? lists(controllers, v->controller) : !*controllers) found = mem_strdup(group);
    }
    str_free(&lines.text);
    return found;
}

/* Returns the group's path relative to a mount that shows the group `shown` as its root. The result is "" if
 * the group is not below `shown`, as in a container without a cgroup namespace. There, the mount point shows the
 * container's group. */
static const char *below(const char *group, const char *shown) {
    const size_t n = strcmp(shown, "/") ? strlen(shown) : 0;
    if (strncmp(group, shown, n) || (group[n] && group[n] != '/') || strstr(group, "/..")) return "";
    return group + n;
}

/* Reads a line of /proc/self/mountinfo. The line's fields are number, parent, device, root of the mount,
 * mount point, options, " - ", type, source, and options of the file system. */
static size_t left_at(const char *root, const char *line, const char *group, const Version *v) {
    const char *separator = strstr(line, " - ");
    char *shown = NULL, *at = NULL, *type = NULL, *options = NULL;
    size_t left = SIZE_MAX;
    if (separator && sscanf(line, "%*s %*s %*s %ms %ms", &shown, &at) == 2 &&
        sscanf(separator, " - %ms %*s %ms", &type, &options) == 2 && !strcmp(type, v->mount) &&
        lists(options, v->controller)) {
        char *folder = mem_printf("%s%s%s", root, at, below(group, shown));
        left = left_above(folder, strlen(root) + strlen(at), v);
        free(folder);
    }
    free(shown), free(at), free(type), free(options);
    return left;
}

static size_t left_by_groups(const char *root, const Version *v) {
    Lines lines = lines_of(root, "proc/self/mountinfo");
    char *group = own_group(root, v);
    size_t least = SIZE_MAX;
    for (char *line; group && (line = next_line(&lines));)
        least = smaller(least, left_at(root, line, group, v));
    str_free(&lines.text);
    free(group);
    return least;
}

size_t host_memory_available(const char *root) {
    const size_t kib = number_in(root, "proc/meminfo", "MemAvailable:", SIZE_MAX);
    size_t least = kib > SIZE_MAX >> 10 ? SIZE_MAX : kib << 10;
    for (size_t i = 0; i < sizeof VERSIONS / sizeof *VERSIONS; i++)
        least = smaller(least, left_by_groups(root, &VERSIONS[i]));
    return least;
}
