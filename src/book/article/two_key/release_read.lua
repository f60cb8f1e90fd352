-- KEYS[1]  the read key, see readers.lua
-- ARGV[1]  our token
-- returns  1 if we were a reader until now, 0 if not
--
-- Only the last reader deletes the key. If a program with the article's scripts has overwritten our
-- tokens with 1, no release of ours deletes it.

local readers = value and listed()
if not (readers and readers[ARGV[1]]) then
  return 0
end
readers[ARGV[1]] = nil
store(readers)
return 1
