// The whole public API.
#pragma once

#include "penstock/buffer.h"
#include "penstock/checksum.h"
#include "penstock/context.h"
#include "penstock/domain.h"
#include "penstock/engine_info.h"
#include "penstock/error.h"
#include "penstock/gpu.h"
#include "penstock/machine.h"
#include "penstock/options.h"
#include "penstock/region.h"
#include "penstock/request.h"
#include "penstock/result.h"
#include "penstock/route.h"
#include "penstock/statistics.h"
#include "penstock/store.h"
#include "penstock/topology.h"
