-- KEYS[1]  the read key, see readers.lua
-- ARGV[1]  our token
-- returns  1 if we were among the readers until now, 0 if not
--
-- The key is deleted by the last reader only. Where a program on the article's scripts has written
-- 1 over our tokens, nobody of ours deletes it.

local readers = value and listed()
if not (readers and readers[ARGV[1]]) then
  return 0
end
readers[ARGV[1]] = nil
store(readers)
return 1
