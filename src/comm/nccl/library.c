#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST = 21800, HAS_COPY_ENGINES = 22800 };

static bool find(void *library, const char *name, void *function) {
    void *at = dlsym(library, name);
    memcpy(function, &at, sizeof at); /* ISO C cannot cast an object pointer to a function pointer */
    return at;
}

/* Returns the name of a function that the library lacks, or NULL if it lacks none. */
static const char *find_functions(Nccl *n) {
#define FUNCTION(name, parameters)                                                                           \
    if (!find(n->library, "nccl" #name, &n->name)) return "nccl" #name;
    NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
#define FUNCTION(name, parameters) find(n->library, "nccl" #name, &n->name);
    NCCL_WINDOW_FUNCTIONS(FUNCTION)
#undef FUNCTION
    if (!find(n->library, "ncclGetErrorString", &n->GetErrorString)) return "ncclGetErrorString";
    if (!find(n->library, "ncclGetLastError", &n->GetLastError)) return "ncclGetLastError";
    return NULL;
}

Err nccl_load(const char *file, Nccl *n) {
    char text[32];
    const char *name = file ? file : "libnccl.so.2";
    *n = (Nccl){.library = dlopen(name, RTLD_NOW | RTLD_LOCAL)};
    if (!n->library)
        return err_user("NCCL cannot be loaded: %s. %s", dlerror(),
                        file ? "Specify the path of a libnccl.so.2"
                             : "Install libnccl.so.2, or specify its path with --nccl-library");
    const char *missing = find_functions(n);
    if (missing) return err_user("'%s' is not NCCL: the library has no function %s", name, missing);
    n->host_memory = dlsym(n->library, "nccl_host_memory") != NULL;
    if (n->GetVersion(&n->version) != NCCL_SUCCESS)
        return err_user("'%s': ncclGetVersion failed: use another libnccl.so.2", name);
    if (n->version < OLDEST)
        return err_user("'%s' is NCCL %s, which is too old: use 2.18.0 or later", name,
                        nccl_version_text(n, text));
    return ERR_OK;
}

bool nccl_shares_a_process(const Nccl *n) { return n->host_memory || n->version >= 22400; }

bool nccl_has_windows(const Nccl *n) {
    return n->version >= HAS_COPY_ENGINES && n->CommWindowRegister && n->CommWindowDeregister;
}

NcclConfig nccl_config(int most_blocks, bool copy_engines) {
    return (NcclConfig){.size = copy_engines ? sizeof(NcclConfig) : offsetof(NcclConfig, network),
                        .magic = NCCL_MAGIC,
                        .version = copy_engines ? HAS_COPY_ENGINES : OLDEST,
                        .blocking = NCCL_UNDEFINED,
                        .cluster_size = NCCL_UNDEFINED,
                        .least_blocks = NCCL_UNDEFINED,
                        .most_blocks = most_blocks ? most_blocks : NCCL_UNDEFINED,
                        .split_share = NCCL_UNDEFINED,
                        .traffic_class = NCCL_UNDEFINED,
                        .collnet = NCCL_UNDEFINED,
                        .policy = NCCL_COPY_ENGINES};
}

const char *nccl_version_text(const Nccl *n, char text[32]) {
    enum { SIZE = 32 };
    snprintf(text, SIZE, "%d.%d.%d", n->version / 10000, n->version / 100 % 100, n->version % 100);
    return text;
}
