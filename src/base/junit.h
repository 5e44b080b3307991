/* Writes the parts of JUnit XML that all readers (Jenkins, GitLab, GitHub actions) support. */
#pragma once

#include "base/str.h"

/* Escapes text for XML content and attributes. Omits characters that XML cannot represent, and replaces bytes that are
 * not UTF-8 with U+FFFD. */
void xml_text(Str *, const char *);

/* Appends the line <property name="..." value="..."/> for a <properties> element. junit_number omits a number
 * that is not finite. */
void junit_property(Str *, const char *indent, const char *name, const char *value);
void junit_number(Str *, const char *indent, const char *name, double value);
