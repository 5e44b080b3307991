/* The parts of JUnit XML that all readers (Jenkins, GitLab, GitHub actions) support. */
#pragma once

#include "base/str.h"

/* Escapes text for XML content and attributes. Characters that XML cannot represent are omitted, and bytes that are
 * not UTF-8 become U+FFFD. */
void xml_text(Str *, const char *);

/* Appends a line <property name="..." value="..."/> for a <properties> element. A number that is not finite is
 * omitted. */
void junit_property(Str *, const char *indent, const char *name, const char *value);
void junit_number(Str *, const char *indent, const char *name, double value);
