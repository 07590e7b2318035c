// Marks what the shared library exports; everything else is hidden.
#pragma once

#define PENSTOCK_EXPORT __attribute__((visibility("default")))
