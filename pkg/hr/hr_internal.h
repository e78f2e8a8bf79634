/* What the files of pkg/hr share. */
#ifndef BELAY_HR_HR_INTERNAL_H
#define BELAY_HR_HR_INTERNAL_H

#include "hr/hr.h"

/* Read spec into hr->spec; what is wrong with it goes into hr->spec_err (the first fault). */
void hr_spec_read(const json_t *spec, struct hr *hr);
void hr_spec_release(struct hr_spec *s);

#endif
