/* Everything that a template can call: filters, tests, methods, functions and macros. */
#pragma once

#include "chat/node.h"
#include "chat/value.h"

typedef struct CallArgs {
    const Value *at;
    size_t n;
    const Dict *names; /* keyword arguments */
} CallArgs;

/* A row in a function table. The name in a table's last row is NULL. */
typedef struct Builtin {
    const char *name;
    Value (*run)(Machine *, const CallArgs *);
    int required; /* number of required arguments */
    /* the parameters' names, separated by spaces, or NULL if any arguments are allowed; at[i] is VALUE_MISSING for an
     * omitted argument */
    const char *params;
} Builtin;

enum { MOST_PARAMS = 8 };

/* The first argument of a filter, test or method is the value to which it is applied. */
extern const Builtin CHAT_FILTERS[], CHAT_TESTS[], CHAT_STRING_METHODS[], CHAT_DICT_METHODS[],
    CHAT_LIST_METHODS[], CHAT_LOOP_METHODS[], CHAT_FUNCTIONS[];

typedef struct Scope {
    struct Scope *up; /* the enclosing scope, or NULL for the template's top-level scope */
    Dict vars;
} Scope;

typedef struct Loop {
    const List *items;
    size_t index;         /* index of the current item */
    int depth;            /* nesting depth of a recursive loop, counted from 0 */
    const TreeNode *node; /* NODE_FOR */
    Scope *scope;         /* the scope that contains the loop */
    const List *seen;     /* the arguments of the last call to `changed`, or NULL before the first call */
} Loop;

typedef struct Callable {
    const Builtin *builtin; /* a function, or a method called on `self` */
    Value self;             /* the object on which a method is called; VALUE_MISSING for a function */
    const TreeNode *macro;  /* NODE_MACRO or NODE_CALL_BLOCK */
    Scope *scope;           /* the scope that defines the macro */
} Callable;

const Builtin *builtin_find(const Builtin *table, Value name);
/* Assigns the arguments to the parameters and runs the function. `kind` is the function's description in messages, such
 * as "filter". */
Value builtin_call(Machine *, const char *kind, const Builtin *, const CallArgs *);
/* Apply a filter or a test. An unknown name is an error. */
Value filter_apply(Machine *, Value name, const CallArgs *);
bool test_apply(Machine *, Value name, const CallArgs *);

/* ---- access.c ---- */

Value access_attribute(Machine *, Value of, Value name); /* of.name */
Value access_item(Machine *, Value of, Value key);       /* of[key] */
/* Returns of[from:to:step]. An omitted bound is passed as none. */
Value access_slice(Machine *, Value of, Value from, Value to, Value step);

/* ---- operators.c ---- */

Value operator_binary(Machine *, Op, Value, Value);
Value operator_negative(Machine *, Value);
bool operator_compare(Machine *, Op, Value, Value);
/* Returns the result of Python's `text % values`. */
Value operator_format(Machine *, Value text, Value values);
