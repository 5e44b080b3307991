/* The syntax tree of a template. */
#pragma once

#include "chat/lexer.h"
#include "chat/value.h"

typedef enum NodeType {
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* value.s is the name */
    NODE_LIST,    /* list */
    NODE_TUPLE,   /* list */
    NODE_DICT,    /* list of key, value, key, value, ... */
    NODE_ATTR,    /* a.value */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* a:b:c, where each part may be NULL */
    NODE_CALL,    /* a(list) */
    NODE_FILTER,  /* a | value(list); a is NULL in a filter block */
    NODE_TEST,    /* a is value(list) */
    NODE_KEYWORD, /* value=a in a call */
    NODE_STAR,    /* *a, in a call */
    NODE_STARS,   /* **a, in a call */
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_POSITIVE, /* a */
    NODE_AND,
    NODE_OR,
    NODE_BINARY,  /* a op b */
    NODE_CONCAT,  /* the elements of list, concatenated by ~ */
    NODE_COMPARE, /* a, followed by a list of NODE_OPERAND */
    NODE_OPERAND, /* op a */
    NODE_CHOOSE,  /* a if b else c; c may be NULL */
    /* statements */
    NODE_DATA,         /* value */
    NODE_PRINT,        /* list */
    NODE_IF,           /* if a: list, else: other */
    NODE_FOR,          /* for a in b if c: list, else: other */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = list, filtered by b if b is not NULL */
    NODE_MACRO,        /* macro value(params): list */
    NODE_CALL_BLOCK,   /* like NODE_MACRO; a is the call that receives the block */
    NODE_FILTER_BLOCK, /* list, filtered by a */
    NODE_SCOPE,        /* list in a new scope; the values of params are computed outside this scope */
    NODE_BREAK,
    NODE_CONTINUE
} NodeType;

typedef enum Op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOOR,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
} Op;

typedef struct TreeNodes {
    struct TreeNode **at;
    size_t n, cap;
} TreeNodes;

typedef struct TreeNode {
    NodeType type;
    int line;
    Op op;
    bool recursive;                          /* whether the loop is recursive, so that it can be called */
    bool uses_rest, uses_names, uses_caller; /* whether the body of a macro reads varargs, kwargs or caller */
    Value value;
    struct TreeNode *a, *b, *c;
    TreeNodes list, other;
    TreeNodes params; /* a macro's NODE_KEYWORDs, with the default or NULL as `a`; a scope's NODE_SETs */
} TreeNode;

enum { PARSER_DEEPEST = 200 }; /* maximum number of nested expressions and blocks */

typedef struct Parser {
    const Token *at;
    Arena *arena;
    int depth, loops; /* loops: number of loops around the statement in the same macro or captured block */
    bool uses_rest, uses_names, uses_caller; /* as in TreeNode, for the part of the macro parsed so far */
    Err err;                                 /* the first error; after an error, all tokens are TOKEN_END */
} Parser;

/* ---- parser_expression.c: expressions, and functions that statements also use ---- */

void parser_fail(Parser *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Reports the error that the current token is not `expected`. */
void parser_fail_at(Parser *, const char *expected);
TreeNode *parser_node(Parser *, NodeType);
void parser_push(Parser *, TreeNodes *, TreeNode *);
/* These functions check whether the current token matches. parser_skip and parser_expect move past a matching
 * token; parser_expect reports an error for any other token. */
bool parser_is(const Parser *, TokenType, const char *text);
bool parser_skip(Parser *, TokenType, const char *text);
void parser_expect(Parser *, TokenType, const char *text);
/* Enters a block or expression. Returns false if the nesting is too deep. After each success, the caller must call
 * parser_leave. */
bool parser_enter(Parser *);
void parser_leave(Parser *);

TreeNode *parser_expression(Parser *);
TreeNode *parser_operand(Parser *); /* an expression without `if` */
TreeNode *parser_primary(Parser *); /* a name, a literal or an expression in brackets */
/* Reads one expression, or several separated by commas. */
TreeNode *parser_tuple(Parser *, TreeNode *item(Parser *));
TreeNode *parser_filters(Parser *); /* filters without an operand, such as upper | trim */

/* ---- parser.c ---- */

Err parser_run(const Token *, Arena *, TreeNodes *out);
