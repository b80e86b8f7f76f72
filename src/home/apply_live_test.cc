#include "home/apply.h"
