// torch without CUDA has no device guard for CUDA; one that does nothing suffices here.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
using c10::DeviceType;
c10::impl::DeviceGuardImplRegistrar guard(DeviceType::CUDA, new c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA>());
}
