// Marks what the shared library exports; everything else is hidden.
#pragma once

#define PENSTOCK_EXPORT [[gnu::visibility("default")]]
