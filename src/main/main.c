#include <cblas.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/fault.h"
#include "base/str.h"
#include "base/terminal.h"
#include "comm/comm.h"
#include "main/command.h"

typedef struct Command {
    const char *name, *what;
    bool on_ranks;
    int (*run)(int argc, char **argv);
} Command;

static const Command TABLE[] = {
#define NAMED_COMMAND(function, name, on_ranks, what) {name, what, on_ranks, command_##function},
#define COMMAND(name, on_ranks, what)                 NAMED_COMMAND(name, #name, on_ranks, what)
    COMMANDS
#undef COMMAND
#undef NAMED_COMMAND
};
enum { N_COMMANDS = sizeof TABLE / sizeof *TABLE };

static void usage(FILE *to) {
    Str text = {0};
    str_puts(&text, "usage: isotron COMMAND [options]\n\n");
    for (int i = 0; i < N_COMMANDS; i++) str_printf(&text, "  %-15s %s\n", TABLE[i].name, TABLE[i].what);
    str_puts(&text, "\nisotron COMMAND --help        what it does, an example, and its options\n"
                    "isotron COMMAND --help WORD   list only options with WORD in their name or help\n");
    terminal_print(to, text.s);
    str_free(&text);
}

/* Commands of other frameworks that this program lacks. */
static const struct {
    const char *words, *answer; /* `words` are separated and surrounded by spaces */
} OTHERS[] = {
    {" server run_text_generation_server run_inference_server run_dynamic_text_generation_server ",
     "use 'serve'"},
    {" chat infer inference sample text_generation ",
     "'generate' continues prompts or, with --interactive, answers messages, and 'serve' is a server"},
    {" eval evaluate evaluation perplexity ppl test lm_eval ",
     "evaluate with 'pretrain --skip-train --load DIR --data-path PREFIX', and a BERT on a task with "
     "'finetune --epochs 0'"},
    {" train run resume pretrain_gpt pretrain_llama pretrain_mamba ",
     "use 'pretrain', with --load to resume"},
    {" pretrain_bert ", "use 'pretrain --model bert'"},
    {" pretrain_t5 ", "use 'pretrain --model t5'"},
    {" sft lora dpo rlhf grpo posttrain instruct ",
     "'pretrain --load DIR --finetune' trains on more text, and 'finetune' a BERT on labelled texts"},
    {" quantize quantise ptq ",
     "train in 8 bits with 'pretrain --fp8-format hybrid'; quantized models cannot be exported"},
    {" export ", "use 'convert --load DIR --to-hf DIR'"},
    {" import load ", "use 'convert --from-hf DIR --save DIR'"},
    {" sweep ", "use 'parity DIR... --sweep LIST'"},
    {" diff ", "use 'compare'"},
    {" accept certify check burnin ", "use 'validate'"},
    {" benchmark profile perf ", "use 'bench'"},
    {" estimate memory search ", "use 'plan'"},
    {" show info ls ", "use 'inspect'"},
    {" encode decode ", "use 'tokenize'"},
    {" preprocess_data prepare ", "use 'preprocess'"},
    {" merge_datasets ", "use 'merge'"},
};

/* Returns the answer for another framework's command, or NULL if there is none. The names of Megatron-LM's scripts may
 * include a folder and an extension. */
static const char *other_answer(const char *word) {
    const char *slash = strrchr(word, '/'), *name = slash ? slash + 1 : word;
    char padded[64];
    const int n = (int)strcspn(name, ".");
    if (!n || n > 60) return NULL;
    snprintf(padded, sizeof padded, " %.*s ", n, name);
    for (char *c = padded; *c; c++)
        if (*c == '-') *c = '_';
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (strstr(OTHERS[i].words, padded)) return OTHERS[i].answer;
    return NULL;
}

/* Returns the row for a command. If there is no such command, prints an error and returns NULL. */
static const Command *find_command(const char *word) {
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = TABLE[i].name;
        if (!strcmp(word, names[i])) return &TABLE[i];
    }
    const char *other = other_answer(word), *near = other ? NULL : str_nearest(word, names, N_COMMANDS);
    fprintf(stderr, "isotron: unknown command %s%s%s%s%s; 'isotron --help' lists all commands\n",
            quote(word).s,
            near    ? ", did you mean '"
            : other ? ": "
                    : "",
            near ? near : "", near ? "'" : "", other ? other : "");
    return NULL;
}

/* Runs `isotron help [COMMAND [WORD]]` as `isotron COMMAND --help [WORD]`. */
static int help(int argc, char **argv) {
    if (argc < 1) return usage(stdout), 0;
    const Command *c = find_command(argv[0]);
    if (!c) return ERR_USER;
    char option[] = "--help", *words[] = {option, argc > 1 ? argv[1] : NULL};
    if (argc > 2)
        return command_fail(
            err_user("help accepts only a command and one word: remove %s", quote(argv[2]).s));
    return c->run(argc, words);
}

/* Ends the process if the address space is too small for the threads that OpenBLAS started before main. Each thread
 * maps a buffer, and retries forever if mapping fails. An exit or a fork would then never finish, because it waits for
 * these threads. */
static void check_address_space(void) {
    /* the size of a buffer and a stack */
    const double each = 136 << 20, needed = each * openblas_get_num_threads();
    struct rlimit limit;
    if (openblas_get_num_threads() == 1 || getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        (double)limit.rlim_cur >= needed)
        return;
    command_fail(err_infra("this process is limited to %s of address space, but OpenBLAS needs %s for its "
                           "threads: raise the limit, for example with 'ulimit -v unlimited', or set "
                           "OPENBLAS_NUM_THREADS=1",
                           bytes_text((double)limit.rlim_cur).s, bytes_text(needed).s));
    fflush(NULL);
    _exit(ERR_INFRA);
}

static int run(int argc, char **argv) {
    if (argc < 2) return usage(stderr), ERR_USER;
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return help(argc - 2, argv + 2);
    const bool version = !strcmp(argv[1], "--version");
    const Command *c = find_command(version ? "version" : argv[1]);
    if (!c) return ERR_USER;
    if (!c->on_ranks && comm_processes() > 1)
        return command_fail(err_user("%s runs as one process: start it without a launcher", c->name));
    return c->run(argc - 2, argv + 2);
}

int main(int argc, char **argv) {
    FaultScope scope = {.where = "rank 0"};
    fault_scope(&scope);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a killed command's redirected output contains all lines */
    check_address_space();
    fault_on_lost_pages();
    signal(SIGXFSZ, SIG_IGN); /* writes beyond the file size limit then return an error */
    const int status = run(argc, argv);
    if (!fflush(stdout) && !ferror(stdout)) return status;
    command_fail(err_infra("part of the output could not be written; check the standard output and its "
                           "disk"));
    return status ? status : ERR_INFRA;
}
