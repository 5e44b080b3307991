#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/file.h"
#include "base/terminal.h"
#include "main/command.h"
#include "parity/ckpt_diff.h"
#include "parity/log_diff.h"

typedef struct Options {
    double bound;
    const char *only;
    bool common, weights_only;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, bound, "bound", ARG_F64, "none",
            "Largest relative difference that passes; none = values must be bitwise equal. For numbers, this "
            "is |a - b| / max(|a|, |b|). For tensors, it is max |a - b| divided by the larger root mean "
            "square of a and b."),
    ARG_ROW(Options, common, "common", ARG_FLAG, "off",
            "Compare only the steps, quantities and tensors that both runs have. Without this option, "
            "missing items count as differences."),
    ARG_ROW(Options, only, "only", ARG_TEXT, "none",
            "Compare only quantities, or tensors, whose names contain this text."),
    ARG_ROW(Options, weights_only, "weights-only", ARG_FLAG, "off",
            "Compare only the parameters of checkpoints, not optimizer state and progress."),
};

static void check(Args *args, const Options *o) {
    if (args->help) return;
    if (args->operands.count != 2) {
        args_problem(args, "specify two logs written with --log-jsonl, or two checkpoint folders");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (!file_exists(args->operands.at[i])) {
            args_problem(args, "'%s' does not exist", args->operands.at[i]);
            return;
        }
    const bool folders = file_is_dir(args->operands.at[0]);
    if (folders != file_is_dir(args->operands.at[1]))
        args_problem(
            args,
            "one of '%s' and '%s' is a folder and the other is not: compare two logs or two checkpoints",
            args->operands.at[0], args->operands.at[1]);
    if (o->weights_only && !folders)
        args_problem(args, "--weights-only applies to checkpoints, because logs have no weights: remove it");
    if (o->bound < 0 || isinf(o->bound)) args_problem(args, "--bound must be a finite number of at least 0");
}

static Err compare(const char *a, const char *b, const Options *o, Diff *d) {
    const CkptDiffOptions options = {{o->bound, o->common, o->only}, o->weights_only};
    Str text = {0};
    Err e = file_is_dir(a) ? ckpt_diff(a, b, &options, d, &text) : log_diff(a, b, &options.diff, d, &text);
    if (text.s) terminal_report(stdout, text.s);
    str_free(&text);
    return e;
}

int command_compare(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o;
    Args args;
    args_init(&args, arena,
              "isotron compare A B [options]    (two logs, or two folders of checkpoints)\n\n"
              "Compares two runs value by value, and reports the first difference. Exit status 1: the runs "
              "differ.\n\n"
              "example: isotron compare yesterday.jsonl today.jsonl --bound 1e-6",
              "A B");
    args_use(&args, ARG_TABLE(ROWS, &o));
    args_line(&args, argc, argv);
    check(&args, &o);
    Err e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        Diff d;
        e = compare(args.operands.at[0], args.operands.at[1], &o, &d);
        status = e.code ? command_fail(e) : d.is_within ? 0 : ERR_FAILED;
    }
    args_free(&args);
    arena_free(arena);
    return status;
}
