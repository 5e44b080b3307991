/* Builds the grammar of the texts that a JSON Schema describes (json-schema.org, draft 2020-12). Each of these texts is
 * valid, but not every valid text is in the grammar. An object has its properties in the order of the schema, and no
 * others. Numbers and white space are those of grammar_builder.h. Supported keywords:
 *
 *   type, enum, const, anyOf, $ref to "#" or a definition in $defs or definitions
 *   properties, required, additionalProperties; items, minItems, maxItems
 *   title, description, default, examples, deprecated, $comment, $schema, $id, which do not change the texts
 *
 * Any other keyword is refused by its name, because a text could then be invalid. */
#pragma once

#include "server/grammar_builder.h"
#include "server/refusal.h"

/* Sets *out to the beginning of a text of the schema that continues with `next`. `field`: the field of the body that has
 * the schema, for a refusal. */
Refusal schema_build(GrammarBuilder *, const json_t *schema, const char *field, int32_t next, int32_t *out);
