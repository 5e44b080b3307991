/* Parses expressions. Operators have Jinja's precedence, not Python's: ~ binds tighter than +, and unary
 * operators bind tighter than filters. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "chat/node.h"

void parser_fail(Parser *p, const char *fmt, ...) {
    if (p->err.code) return;
    va_list args;
    va_start(args, fmt);
    p->err = lexer_error(p->at->line, fmt, args);
    va_end(args);
    while (p->at->type != TOKEN_END) p->at++;
}

void parser_fail_at(Parser *p, const char *expected) {
    static const char *const NAMES[] = {"the end of the template", "text", "{{", "}}", "{%", "%}"};
    const Token *t = p->at;
    parser_fail(p, "%s is expected, not %s; correct the syntax", expected,
                t->type <= TOKEN_BLOCK_END ? NAMES[t->type] : value_quote(value_view(t->s, t->n)).s);
}

TreeNode *parser_node(Parser *p, NodeType type) {
    TreeNode *node = arena_alloc(p->arena, sizeof *node);
    node->type = type;
    node->line = p->at->line;
    return node;
}

void parser_push(Parser *p, TreeNodes *nodes, TreeNode *node) {
    if (nodes->n == nodes->cap) {
        TreeNode **more = arena_alloc(p->arena, (nodes->cap = 2 * nodes->cap + 4) * sizeof *more);
        if (nodes->n) memcpy(more, nodes->at, nodes->n * sizeof *more);
        nodes->at = more;
    }
    nodes->at[nodes->n++] = node;
}

static bool token_is(const Token *t, TokenType type, const char *text) {
    return t->type == type && (!text || (t->n == strlen(text) && !memcmp(t->s, text, t->n)));
}

bool parser_is(const Parser *p, TokenType type, const char *text) { return token_is(p->at, type, text); }

bool parser_skip(Parser *p, TokenType type, const char *text) {
    if (!parser_is(p, type, text)) return false;
    p->at++;
    return true;
}

void parser_expect(Parser *p, TokenType type, const char *text) {
    if (!parser_skip(p, type, text))
        parser_fail_at(p, text                      ? text
                          : type == TOKEN_BLOCK_END ? "%}"
                          : type == TOKEN_PRINT_END ? "}}"
                                                    : "a name");
}

bool parser_enter(Parser *p) {
    if (p->depth == PARSER_DEEPEST) parser_fail(p, "expressions or blocks are nested too deeply; use `set`");
    if (p->err.code) return false;
    p->depth++;
    return true;
}

void parser_leave(Parser *p) { p->depth--; }

#define IS_OP(p, text)     parser_is(p, TOKEN_OPERATOR, text)
#define SKIP_OP(p, text)   parser_skip(p, TOKEN_OPERATOR, text)
#define SKIP_WORD(p, text) parser_skip(p, TOKEN_NAME, text)

/* Returns the name at the current token as a string value. */
static Value take_name(Parser *p) {
    const Token *t = p->at;
    parser_expect(p, TOKEN_NAME, NULL);
    return value_view(t->s, t->n);
}

/* ---- operands ---- */

/* Reads expressions and commas until the closing bracket. */
static void items(Parser *p, TreeNode *node, const char *close) {
    while (!SKIP_OP(p, close) && !p->err.code) {
        if (node->list.n) {
            parser_expect(p, TOKEN_OPERATOR, ",");
            if (SKIP_OP(p, close)) return;
        }
        parser_push(p, &node->list, parser_expression(p));
        if (node->type != NODE_DICT) continue;
        parser_expect(p, TOKEN_OPERATOR, ":");
        parser_push(p, &node->list, parser_expression(p));
    }
}

static TreeNode *constant(Parser *p, Value v) {
    TreeNode *node = parser_node(p, NODE_CONST);
    node->value = v;
    return node;
}

static TreeNode *name(Parser *p) {
    const Value v = value_view(p->at->s, p->at->n);
    TreeNode *node = parser_node(p, NODE_NAME);
    node->value = v;
    if (value_is(v, "true") || value_is(v, "True") || value_is(v, "false") || value_is(v, "False"))
        node = constant(p, value_bool((v.s[0] | 32) == 't'));
    else if (value_is(v, "none") || value_is(v, "None"))
        node = constant(p, value_none());
    p->uses_rest |= value_is(v, "varargs");
    p->uses_names |= value_is(v, "kwargs");
    p->uses_caller |= value_is(v, "caller");
    p->at++;
    return node;
}

/* Reads a string. Consecutive strings form one string. */
static TreeNode *string(Parser *p) {
    TreeNode *node = constant(p, value_view(p->at->s, p->at->n));
    size_t n = 0;
    const Token *from = p->at;
    for (; p->at->type == TOKEN_STRING; p->at++) n += p->at->n;
    if (p->at == from + 1) return node;
    char *joined = arena_alloc(p->arena, n + 1);
    n = 0;
    for (; from < p->at; n += from->n, from++) memcpy(joined + n, from->s, from->n);
    node->value = value_view(joined, n);
    return node;
}

TreeNode *parser_primary(Parser *p) {
    const Token *t = p->at;
    TreeNode *node;
    switch (t->type) {
    case TOKEN_NAME:
        return name(p);
    case TOKEN_STRING:
        return string(p);
    case TOKEN_INT:
    case TOKEN_FLOAT:
        p->at++;
        return constant(p, t->type == TOKEN_INT ? value_int(t->i) : value_float(t->f));
    default:
        break;
    }
    if (!parser_enter(p)) return parser_node(p, NODE_CONST);
    if (SKIP_OP(p, "(")) {
        node = IS_OP(p, ")") ? parser_node(p, NODE_TUPLE) : parser_tuple(p, parser_expression);
        parser_expect(p, TOKEN_OPERATOR, ")");
    } else if (IS_OP(p, "[") || IS_OP(p, "{")) {
        const bool is_list = IS_OP(p, "[");
        node = parser_node(p, is_list ? NODE_LIST : NODE_DICT);
        p->at++;
        items(p, node, is_list ? "]" : "}");
    } else {
        node = parser_node(p, NODE_CONST);
        parser_fail_at(p, "an expression");
    }
    parser_leave(p);
    return node;
}

static bool ends_tuple(const Parser *p) {
    return p->at->type == TOKEN_PRINT_END || p->at->type == TOKEN_BLOCK_END || IS_OP(p, ")") ||
           parser_is(p, TOKEN_NAME, "recursive");
}

TreeNode *parser_tuple(Parser *p, TreeNode *item(Parser *)) {
    TreeNode *first = item(p);
    if (!IS_OP(p, ",")) return first;
    TreeNode *tuple = parser_node(p, NODE_TUPLE);
    parser_push(p, &tuple->list, first);
    while (SKIP_OP(p, ",") && !ends_tuple(p)) parser_push(p, &tuple->list, item(p));
    return tuple;
}

/* ---- calls, attributes, filters and tests ---- */

static void call_argument(Parser *p, TreeNodes *list, int *stage) {
    enum { POSITIONAL, KEYWORD, STAR, STARS };
    int kind = POSITIONAL;
    TreeNode *node = NULL;
    if (SKIP_OP(p, "*")) {
        node = parser_node(p, NODE_STAR), kind = STAR;
    } else if (SKIP_OP(p, "**")) {
        node = parser_node(p, NODE_STARS), kind = STARS;
    } else if (p->at->type == TOKEN_NAME && token_is(p->at + 1, TOKEN_OPERATOR, "=")) {
        node = parser_node(p, NODE_KEYWORD), kind = KEYWORD;
        node->value = take_name(p);
        p->at++;
    }
    if (kind == POSITIONAL ? *stage > POSITIONAL
        : kind == KEYWORD  ? *stage == STARS
                           : kind <= *stage && *stage > KEYWORD)
        parser_fail(
            p, "the arguments of a call are out of order; write positional ones, then keywords, * and **");
    if (kind > *stage) *stage = kind;
    TreeNode *value = parser_expression(p);
    if (node) node->a = value;
    parser_push(p, list, node ? node : value);
}

static void call_arguments(Parser *p, TreeNodes *list) {
    int stage = 0;
    parser_expect(p, TOKEN_OPERATOR, "(");
    while (!SKIP_OP(p, ")") && !p->err.code) {
        if (list->n) {
            parser_expect(p, TOKEN_OPERATOR, ",");
            if (SKIP_OP(p, ")")) return;
        }
        call_argument(p, list, &stage);
    }
}

static TreeNode *subscript_part(Parser *p) {
    TreeNode *node = IS_OP(p, ":") ? NULL : parser_expression(p);
    if (!IS_OP(p, ":")) return node;
    TreeNode *slice = parser_node(p, NODE_SLICE);
    slice->a = node;
    p->at++;
    if (!IS_OP(p, ":") && !IS_OP(p, "]") && !IS_OP(p, ",")) slice->b = parser_expression(p);
    if (SKIP_OP(p, ":") && !IS_OP(p, "]") && !IS_OP(p, ",")) slice->c = parser_expression(p);
    return slice;
}

static TreeNode *attribute(Parser *p, TreeNode *of) {
    const bool number = p->at->type == TOKEN_INT;
    TreeNode *node = parser_node(p, number ? NODE_ITEM : NODE_ATTR);
    node->a = of;
    if (number) {
        node->b = constant(p, value_int(p->at->i));
        p->at++;
    } else
        node->value = take_name(p);
    return node;
}

static TreeNode *call(Parser *p, TreeNode *of) {
    TreeNode *node = parser_node(p, NODE_CALL);
    node->a = of;
    call_arguments(p, &node->list);
    return node;
}

static TreeNode *postfix(Parser *p, TreeNode *node) {
    while (!p->err.code) {
        if (SKIP_OP(p, "."))
            node = attribute(p, node);
        else if (IS_OP(p, "[")) {
            TreeNode *item = parser_node(p, NODE_ITEM);
            p->at++;
            item->a = node, item->b = subscript_part(p);
            parser_expect(p, TOKEN_OPERATOR, "]");
            node = item;
        } else if (IS_OP(p, "("))
            node = call(p, node);
        else
            break;
    }
    return node;
}

static TreeNode *filter(Parser *p, TreeNode *of) {
    TreeNode *node = parser_node(p, NODE_FILTER);
    node->a = of;
    node->value = take_name(p);
    if (IS_OP(p, "(")) call_arguments(p, &node->list);
    return node;
}

/* Returns whether the token begins a test's unbracketed operand, as in `x is divisibleby 3`. */
static bool begins_operand(const Token *t) {
    if (t->type == TOKEN_NAME)
        return !token_is(t, TOKEN_NAME, "else") && !token_is(t, TOKEN_NAME, "or") &&
               !token_is(t, TOKEN_NAME, "and");
    return t->type == TOKEN_STRING || t->type == TOKEN_INT || t->type == TOKEN_FLOAT ||
           token_is(t, TOKEN_OPERATOR, "[") || token_is(t, TOKEN_OPERATOR, "{");
}

static TreeNode *test(Parser *p, TreeNode *of) {
    TreeNode *node = parser_node(p, NODE_TEST);
    const bool negated = SKIP_WORD(p, "not");
    node->a = of;
    node->value = take_name(p);
    if (IS_OP(p, "("))
        call_arguments(p, &node->list);
    else if (parser_is(p, TOKEN_NAME, "is"))
        parser_fail(p, "a test follows a test; combine them with `and`");
    else if (begins_operand(p->at))
        parser_push(p, &node->list, postfix(p, parser_primary(p)));
    if (!negated) return node;
    TreeNode *inverse = parser_node(p, NODE_NOT);
    inverse->a = node;
    return inverse;
}

static TreeNode *filters(Parser *p, TreeNode *node) {
    while (!p->err.code) {
        if (SKIP_OP(p, "|"))
            node = filter(p, node);
        else if (SKIP_WORD(p, "is"))
            node = test(p, node);
        else if (IS_OP(p, "("))
            node = call(p, node);
        else
            break;
    }
    return node;
}

TreeNode *parser_filters(Parser *p) {
    TreeNode *node = filter(p, NULL);
    while (SKIP_OP(p, "|")) node = filter(p, node);
    return node;
}

/* ---- operators, in order of decreasing precedence ---- */

static TreeNode *unary(Parser *p, bool with_filters) {
    if (!IS_OP(p, "-") && !IS_OP(p, "+")) {
        TreeNode *node = postfix(p, parser_primary(p));
        return with_filters ? filters(p, node) : node;
    }
    TreeNode *node = parser_node(p, IS_OP(p, "-") ? NODE_NEGATIVE : NODE_POSITIVE);
    if (!parser_enter(p)) return node;
    p->at++;
    node->a = unary(p, false);
    parser_leave(p);
    node = postfix(p, node);
    return with_filters ? filters(p, node) : node;
}

typedef struct Level {
    const char *text;
    Op op;
} Level;

static TreeNode *unary_with_filters(Parser *p) { return unary(p, true); }

/* Reads operands separated by left-associative operators of the same precedence. */
static TreeNode *binary(Parser *p, TreeNode *operand(Parser *), const Level *levels) {
    TreeNode *left = operand(p);
    for (const Level *level = levels; level->text && !p->err.code;) {
        if (!IS_OP(p, level->text)) {
            level++;
            continue;
        }
        TreeNode *node = parser_node(p, NODE_BINARY);
        p->at++;
        node->op = level->op, node->a = left, node->b = operand(p);
        left = node, level = levels;
    }
    return left;
}

static TreeNode *power(Parser *p) {
    return binary(p, unary_with_filters, (const Level[]){{"**", OP_POW}, {NULL, 0}});
}

static TreeNode *product(Parser *p) {
    static const Level LEVELS[] = {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOOR}, {"%", OP_MOD}, {NULL, 0}};
    return binary(p, power, LEVELS);
}

static TreeNode *joined(Parser *p) {
    TreeNode *first = product(p);
    if (!IS_OP(p, "~")) return first;
    TreeNode *node = parser_node(p, NODE_CONCAT);
    parser_push(p, &node->list, first);
    while (SKIP_OP(p, "~")) parser_push(p, &node->list, product(p));
    return node;
}

static TreeNode *sum(Parser *p) {
    return binary(p, joined, (const Level[]){{"+", OP_ADD}, {"-", OP_SUB}, {NULL, 0}});
}

/* Reads the comparison operator at the current token. Returns false if the token is not a comparison
 * operator. */
static bool comparison(Parser *p, Op *op) {
    static const Level LEVELS[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                                   {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    for (size_t i = 0; i < sizeof LEVELS / sizeof *LEVELS; i++)
        if (SKIP_OP(p, LEVELS[i].text)) return *op = LEVELS[i].op, true;
    if (SKIP_WORD(p, "in")) return *op = OP_IN, true;
    if (!parser_is(p, TOKEN_NAME, "not") || !token_is(p->at + 1, TOKEN_NAME, "in")) return false;
    p->at += 2;
    return *op = OP_NOT_IN, true;
}

static TreeNode *compared(Parser *p) {
    TreeNode *first = sum(p), *node = NULL;
    for (Op op; comparison(p, &op);) {
        TreeNode *operand = parser_node(p, NODE_OPERAND);
        operand->op = op, operand->a = sum(p);
        if (!node) node = parser_node(p, NODE_COMPARE), node->a = first;
        parser_push(p, &node->list, operand);
    }
    return node ? node : first;
}

static TreeNode *negated(Parser *p) {
    if (!parser_is(p, TOKEN_NAME, "not")) return compared(p);
    TreeNode *node = parser_node(p, NODE_NOT);
    if (!parser_enter(p)) return node;
    p->at++;
    node->a = negated(p);
    parser_leave(p);
    return node;
}

static TreeNode *logic(Parser *p, TreeNode *operand(Parser *), NodeType type, const char *word) {
    TreeNode *left = operand(p);
    while (SKIP_WORD(p, word)) {
        TreeNode *node = parser_node(p, type);
        node->a = left, node->b = operand(p);
        left = node;
    }
    return left;
}

static TreeNode *conjunction(Parser *p) { return logic(p, negated, NODE_AND, "and"); }

TreeNode *parser_operand(Parser *p) { return logic(p, conjunction, NODE_OR, "or"); }

TreeNode *parser_expression(Parser *p) {
    if (!parser_enter(p)) return parser_node(p, NODE_CONST);
    TreeNode *node = parser_operand(p);
    while (SKIP_WORD(p, "if")) {
        TreeNode *choose = parser_node(p, NODE_CHOOSE);
        choose->a = node, choose->b = parser_operand(p);
        if (SKIP_WORD(p, "else")) choose->c = parser_expression(p);
        node = choose;
    }
    parser_leave(p);
    return node;
}
