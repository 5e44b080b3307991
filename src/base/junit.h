/* Parts of JUnit XML, as its readers (Jenkins, GitLab, GitHub actions) agree on it. */
#pragma once

#include "base/str.h"

/* Escapes text for XML content and attributes. Characters that XML cannot hold are left out, and
 * bytes that are not UTF-8 become U+FFFD. */
void xml_text(Str *, const char *);

/* <property name="..." value="..."/> on a line, for a <properties> element. The number must be finite, else
 * there is no property. */
void junit_property(Str *, const char *indent, const char *name, const char *value);
void junit_number(Str *, const char *indent, const char *name, double value);
