// A shared object like any other.
extern "C" int nothing_of_an_engine();
extern "C" int nothing_of_an_engine() {
  return 0;
}
