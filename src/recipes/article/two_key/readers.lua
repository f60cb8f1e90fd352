-- Stands before the scripts on the readers of two_key.
--
-- KEYS[1]  the read key: a STRING. A program on the article's scripts writes 1 there, over whatever was there; we write
--          our readers' tokens and ends (milliseconds since 1970 by the server's clock) as a JSON object. The empty
--          token stands for the readers that are not ours: the key had their end when the first of ours came.
--
-- Neither kind minds what the other writes: the article's scripts only ask whether the key exists. The key ends with
-- the last reader.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.call('GET', KEYS[1])

-- The readers that are in, by token, or nil if the key holds anything else than what we write.
local function listed()
  local is_json, found = pcall(cjson.decode, value)
  if not is_json or type(found) ~= 'table' or not next(found) then
    return nil
  end
  local readers = {}
  for token, ending in pairs(found) do
    if type(token) ~= 'string' or type(ending) ~= 'number' or not (ending < 9007199254740992) then
      return nil
    end
    if ending >= now then
      readers[token] = ending
    end
  end
  return readers
end

-- Writes the list. The key ends a millisecond after the last reader: PX may count from an earlier moment than TIME, since
-- Redis 7.2 from the one at which the script began.
local function store(readers)
  local last = 0
  for _, ending in pairs(readers) do
    last = math.max(last, ending)
  end
  if last == 0 then
    redis.call('DEL', KEYS[1])
  else
    local left = string.format('%.0f', last - now + 1)
    redis.call('SET', KEYS[1], cjson.encode(readers), 'PX', left)
  end
end
