"""What tests share: no test module imports another one."""
