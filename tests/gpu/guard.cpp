// torch without CUDA has nothing that makes a CUDA device current; nothing is what that takes here.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
using c10::DeviceType;
c10::impl::DeviceGuardImplRegistrar guard(DeviceType::CUDA, new c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA>());
}
