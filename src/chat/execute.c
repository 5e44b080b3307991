/* This file and evaluate.c call each other: an expression can call a macro, whose body consists of statements. */
#include <string.h>

#include "chat/run.h"

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

static Flow run(Machine *, Scope *, const TreeNodes *);

/* ---- text ---- */

static void write(Machine *m, Value v) {
    const size_t before = m->out->len;
    value_print(m, v, m->out);
    const size_t n = m->out->len - before;
    if (n > m->left.output)
        machine_fail(m,
                     "the text is longer than the limit; shorten the conversation or correct the template");
    else
        m->left.output -= n;
}

/* Runs statements and returns the text that they print. */
static Value capture(Machine *m, Scope *scope, const TreeNodes *nodes) {
    Str text = {0}, *const outside = m->out;
    m->out = &text;
    run(m, scope, nodes);
    m->out = outside;
    return value_take(m, &text);
}

static Scope *scope_in(Machine *m, Scope *up) {
    Scope *scope = machine_take(m, sizeof *scope);
    if (scope) scope->up = up;
    return scope;
}

/* ---- assignments ---- */

static void assign_attribute(Machine *m, Scope *scope, const TreeNode *target, Value v) {
    const Value of = chat_evaluate(m, scope, target->a);
    if (m->err.code) return;
    if (of.type != VALUE_NAMESPACE)
        machine_fail(m, "an attribute of %s cannot be set; use a namespace", value_type_name(of));
    else if (target->value.n && *target->value.s == '_')
        machine_fail(m, "the attribute %s of a namespace begins with _; rename it",
                     value_quote(target->value).s);
    else
        dict_set(m, of.dict, target->value, v);
}

static void assign(Machine *m, Scope *scope, const TreeNode *target, Value v) {
    if (m->err.code) return;
    if (target->type == NODE_NAME) {
        dict_set(m, &scope->vars, target->value, v);
    } else if (target->type == NODE_ATTR) {
        assign_attribute(m, scope, target, v);
    } else {
        const List *items = value_items(m, v);
        if (!m->err.code && items->n != target->list.n)
            machine_fail(m, "%zu values cannot be assigned to %zu names", items->n, target->list.n);
        for (size_t i = 0; i < target->list.n && !m->err.code; i++)
            assign(m, scope, target->list.at[i], items->at[i]);
    }
}

static void run_set_block(Machine *m, Scope *scope, const TreeNode *node) {
    Scope *inside = scope_in(m, scope);
    Value text = inside ? capture(m, inside, &node->list) : UNDEFINED;
    if (node->b && !m->err.code) text = chat_evaluate_filters(m, scope, node->b, text);
    assign(m, scope, node->a, text);
}

/* ---- loops ---- */

/* Returns the items for which the loop's condition is true. */
static const List *chosen_items(Machine *m, Scope *scope, const TreeNode *node, const List *items) {
    if (!node->c) return items;
    Scope *inside = scope_in(m, scope);
    Value made = value_list(m, KIND_LIST);
    for (size_t i = 0; i < items->n && !m->err.code; i++) {
        assign(m, inside, node->a, items->at[i]);
        if (value_true(chat_evaluate(m, inside, node->c))) list_push(m, made.list, items->at[i]);
    }
    return m->err.code ? items : made.list;
}

static void run_loop(Machine *m, const TreeNode *node, Scope *scope, Value over, int depth) {
    const List *items = value_items(m, over);
    if (m->err.code) return;
    items = chosen_items(m, scope, node, items);
    Scope *inside = scope_in(m, scope);
    Loop *loop = machine_take(m, sizeof *loop);
    if (m->err.code) return;
    *loop = (Loop){.items = items, .node = node, .scope = scope, .depth = depth};
    Flow flow = FLOW_NEXT;
    for (; loop->index < items->n && flow != FLOW_BREAK && !m->err.code; loop->index++) {
        inside->vars.n = 0;
        dict_set(m, &inside->vars, value_view("loop", 4), (Value){.type = VALUE_LOOP, .loop = loop});
        assign(m, inside, node->a, items->at[loop->index]);
        if (!m->err.code) flow = run(m, inside, &node->list);
    }
    if (items->n || m->err.code) return;
    inside = scope_in(m, scope);
    if (inside) run(m, inside, &node->other);
}

Value chat_execute_loop_again(Machine *m, const Loop *loop, Value items) {
    Str text = {0}, *const outside = m->out;
    m->out = &text;
    run_loop(m, loop->node, loop->scope, items, loop->depth + 1);
    m->out = outside;
    return value_take(m, &text);
}

/* ---- macros ---- */

static Value macro_value(Machine *m, Scope *scope, const TreeNode *node) {
    Callable *made = machine_take(m, sizeof *made);
    if (!made) return UNDEFINED;
    *made = (Callable){.macro = node, .scope = scope};
    return (Value){.type = VALUE_CALLABLE, .callable = made};
}

static bool is_param(const TreeNode *macro, Value name) {
    for (size_t i = 0; i < macro->params.n; i++)
        if (macro->params.at[i]->value.n == name.n && !memcmp(macro->params.at[i]->value.s, name.s, name.n))
            return true;
    return false;
}

/* Sets parameter i to its argument, its default, or an undefined value. */
static void set_param(Machine *m, Scope *scope, const TreeNode *macro, size_t i, const CallArgs *a) {
    const TreeNode *param = macro->params.at[i];
    const Value *named = i < a->n ? NULL : dict_get(m, a->names, param->value);
    Value v = value_undefined(VALUE_MISSING, param->value.s, param->value.n);
    if (i < a->n)
        v = a->at[i];
    else if (named)
        v = *named;
    else if (param->a)
        v = chat_evaluate(m, scope, param->a);
    if (!m->err.code) dict_set(m, &scope->vars, param->value, v);
}

/* Sets the variables varargs, kwargs and caller if the macro's body reads them. */
static void set_rest(Machine *m, Scope *scope, const TreeNode *macro, const CallArgs *a) {
    Value rest = value_list(m, KIND_TUPLE), names = value_dict(m);
    for (size_t i = macro->params.n; i < a->n && !m->err.code; i++) list_push(m, rest.list, a->at[i]);
    for (size_t i = 0; i < a->names->n && !m->err.code; i++) {
        const Pair *pair = &a->names->at[i];
        const bool caller = value_is(pair->key, "caller");
        if (is_param(macro, pair->key)) continue;
        if (caller && macro->uses_caller)
            dict_set(m, &scope->vars, pair->key, pair->value);
        else if (macro->uses_names)
            dict_set(m, names.dict, pair->key, pair->value);
        else
            machine_fail(m, "the macro %s has no parameter %s here", value_quote(macro->value).s,
                         value_quote(pair->key).s);
    }
    if (m->err.code) return;
    if (macro->uses_rest) dict_set(m, &scope->vars, value_view("varargs", 7), rest);
    if (macro->uses_names) dict_set(m, &scope->vars, value_view("kwargs", 6), names);
    if (!macro->uses_rest && rest.list->n)
        machine_fail(m, "the macro %s has at most %zu parameters, not %zu", value_quote(macro->value).s,
                     macro->params.n, a->n);
}

Value chat_execute_macro(Machine *m, const Callable *callable, const CallArgs *a) {
    const TreeNode *macro = callable->macro;
    Scope *scope = machine_enter(m) ? scope_in(m, callable->scope) : NULL;
    if (!scope) return UNDEFINED;
    for (size_t i = 0; i < macro->params.n && !m->err.code; i++) {
        if (i < a->n && dict_get(m, a->names, macro->params.at[i]->value))
            machine_fail(m, "the parameter %s of a macro is given twice",
                         value_quote(macro->params.at[i]->value).s);
        set_param(m, scope, macro, i, a);
    }
    if (!m->err.code) set_rest(m, scope, macro, a);
    const Value text = m->err.code ? UNDEFINED : capture(m, scope, &macro->list);
    machine_leave(m);
    return text;
}

/* Calls a macro with the block's body as `caller`, and prints the text that the macro returns. */
static void run_call_block(Machine *m, Scope *scope, const TreeNode *node) {
    const Value of = chat_evaluate(m, scope, node->a->a);
    if (!m->err.code && (of.type != VALUE_CALLABLE || !of.callable->macro))
        value_fail_type(m, of, "a call block needs a macro");
    CallArgs a = chat_evaluate_args(m, scope, &node->a->list, (Value){0});
    if (m->err.code) return;
    dict_set(m, (Dict *)a.names, value_view("caller", 6), macro_value(m, scope, node));
    m->line = node->line;
    const Value text = chat_execute_macro(m, of.callable, &a);
    if (!m->err.code) write(m, text);
}

/* ---- statements ---- */

static void run_scope(Machine *m, Scope *scope, const TreeNode *node) {
    Scope *inside = scope_in(m, scope);
    for (size_t i = 0; i < node->params.n && !m->err.code; i++)
        assign(m, inside, node->params.at[i]->a, chat_evaluate(m, scope, node->params.at[i]->b));
    if (!m->err.code) run(m, inside, &node->list);
}

static Flow run_one(Machine *m, Scope *scope, const TreeNode *node) {
    Scope *inside;
    switch (node->type) {
    case NODE_DATA:
        write(m, node->value);
        break;
    case NODE_PRINT:
        for (size_t i = 0; i < node->list.n && !m->err.code; i++)
            write(m, chat_evaluate(m, scope, node->list.at[i]));
        break;
    case NODE_IF:
        return run(m, scope, value_true(chat_evaluate(m, scope, node->a)) ? &node->list : &node->other);
    case NODE_FOR:
        run_loop(m, node, scope, chat_evaluate(m, scope, node->b), 0);
        break;
    case NODE_SET:
        assign(m, scope, node->a, chat_evaluate(m, scope, node->b));
        break;
    case NODE_SET_BLOCK:
        run_set_block(m, scope, node);
        break;
    case NODE_MACRO:
        dict_set(m, &scope->vars, node->value, macro_value(m, scope, node));
        break;
    case NODE_CALL_BLOCK:
        run_call_block(m, scope, node);
        break;
    case NODE_FILTER_BLOCK:
        inside = scope_in(m, scope);
        if (inside) write(m, chat_evaluate_filters(m, scope, node->a, capture(m, inside, &node->list)));
        break;
    case NODE_SCOPE:
        run_scope(m, scope, node);
        break;
    case NODE_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
    return FLOW_NEXT;
}

static Flow run(Machine *m, Scope *scope, const TreeNodes *nodes) {
    Flow flow = FLOW_NEXT;
    if (!machine_enter(m)) return flow;
    for (size_t i = 0; i < nodes->n && flow == FLOW_NEXT && machine_spend(m, 1); i++) {
        m->line = nodes->at[i]->line;
        flow = run_one(m, scope, nodes->at[i]);
    }
    machine_leave(m);
    return flow;
}

void chat_execute(Machine *m, Scope *scope, const TreeNodes *nodes) { run(m, scope, nodes); }
