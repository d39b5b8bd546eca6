"""Starting Spark sessions.

sessions           `session` and `register`
java               finds a Java
worker_python      chooses the Python of the workers
package_shipping   brings our package to executors
script_cache       keeps generated scripts
"""
